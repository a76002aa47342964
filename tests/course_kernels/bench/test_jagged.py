"""Rows and providers with one B for all groups: all of them give the same product."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from clock import Clock
from course_kernels.bench import grouped, jagged
from course_kernels.bench.operands import make_operands
from course_kernels.bench.rows import by_name
from course_kernels.bench.verification import count_wrong

TINY = jagged.SharedRow("tiny", "26 over 4, 16, 24", (17, 0, 1, 8), 16, 24, "compute")
HELION = {"helion-simple", "helion-persistent", "helion-simple-default", "helion-persistent-default", "helion-scanning"}


def test_rows_are_the_documents_tritonbenchs_and_real_layers():
    rows = {row.name: row for row in jagged.rows()}
    assert rows["document"].sizes == tuple(64 * i for i in (1, 2, 3, 4))
    assert (rows["document"].N, rows["document"].K) == (128, 256)
    assert [(rows[f"tb-{n}"].sizes, rows[f"tb-{n}"].N, rows[f"tb-{n}"].K) for n in (128, 1024)] == [
        ((128,) * 4, 128, 128), ((1024,) * 4, 1024, 1024)
    ]  # fmt: skip
    assert rows["qwen3-up"].sizes == by_name()["zipf128-up"].sizes
    assert TINY.bytes_moved() == 2 * (26 * 24 + 24 * 16 + 26 * 16), "B is read once"
    with pytest.raises(ValueError, match="'dA'"):
        TINY.bytes_moved("dA")


def test_operands_share_one_b_and_have_all_offsets():
    operands = make_operands(TINY, "cpu")
    shared, B, offsets = jagged.operands_of(operands)
    assert shared.weight.shape == operands.weight.shape
    assert torch.equal(shared.weight[3].mT, B)
    assert B.is_contiguous()
    assert offsets.tolist() == [0, 17, 17, 18, 26]


def test_every_provider_gives_the_product():
    providers = [provider for provider in jagged.providers() if provider.name not in HELION]
    results = grouped.measure([TINY], providers, passes=("forward", "called"), repeats=2, device="cpu", timer=Clock())
    entry = results.rows["tiny"].timings
    assert set(entry.us["forward"]) == {"auto", "triton-simple", "triton-persistent", "torch", "cublas"}
    assert not entry.failed
    assert entry.choice["forward"] == {"torch": "views"}
    assert results.providers["cublas"]["role"] == "ceiling"


def test_without_helion_its_providers_are_absent(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    absent = {provider.name for provider in jagged.providers() if provider.unavailable() == "helion is not installed"}
    assert absent == HELION


@pytest.mark.skipif(importlib.util.find_spec("helion") is None, reason="helion is not installed")
def test_providers_in_helion_give_the_product():
    """One default; that of the other kernel takes as long again, and `Ours` has tests of its own."""
    chosen = ("helion-persistent-default", "helion-scanning")
    providers = [provider for provider in jagged.providers() if provider.name in chosen]
    assert len(providers) == 2
    operands = make_operands(TINY, "cpu")
    exact = operands.a.double() @ operands.weight[0].mT.double()
    for provider in providers:
        assert provider.version().count(".") == 2
        result = provider.prepare(operands).forward[""]()
        assert count_wrong([result], [exact], torch.finfo(torch.bfloat16).eps) == [0], provider.name
