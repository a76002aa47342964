"""The record of gmm without a GPU: its rows, its calls against float64, and what a wrong result does."""

from __future__ import annotations

import pytest
import torch

import gmm_api
from bench_stand_ins import TINY, measured_here
from course_kernels.bench import record
from course_kernels.bench.interface import WrongResult


def test_rows_are_models_evenly_and_by_zipf():
    table = gmm_api.models()
    assert len(table) == 2 * len(gmm_api.MODELS) == len({row.name for row in table})
    for row, (_, _, total, groups, N, K) in zip(table, (model for model in gmm_api.MODELS for _ in range(2))):
        assert (row.total_m, row.groups, row.N, row.K) == (total, groups, N, K)
    assert max(table[0].sizes) - min(table[0].sizes) <= 1 < max(table[1].sizes) / min(table[1].sizes)
    # Operands, their memory for results and a peer's result stay below the memory of an H100.
    assert all(2 * (4 * row.groups * row.N * row.K + 6 * row.total_m * (row.N + row.K)) < 70e9 for row in table)


def results_of(layer, pass_name):
    """Each provider's result over poisoned memory, and what verifies it."""
    for provider in gmm_api.providers():
        calls = provider.prepare(layer)
        for call in calls.of(pass_name).values():
            for tensor in (layer.matrices.out, layer.matrices.d_weight, layer.bias_grad):
                tensor.fill_(torch.nan)
            yield provider.name, call(), calls.operands or layer


@pytest.mark.parametrize(("pass_name", "ours"), [("forward", ["gmm"]), ("dB", ["ptgmm", "nptgmm"])])
def test_every_call_computes_what_is_verified(pass_name, ours):
    names = []
    for name, result, operands in results_of(gmm_api.Layer.of(TINY, "cpu"), pass_name):
        operands.verify(result, pass_name)
        names.append(name)
    assert names == [*ours, "torch grouped_mm", "cuBLAS loop"]


@pytest.mark.parametrize(
    ("pass_name", "which", "message"),
    [("forward", None, "rows of group 2"), ("dB", 0, "weights' gradient of group 2"), ("dB", 1, "bias's")],
)
def test_a_wrong_element_is_found(pass_name, which, message):
    _, found, operands = next(results_of(gmm_api.Layer.of(TINY, "cpu"), pass_name))
    (found if which is None else found[which])[20 if pass_name == "forward" else 2, 3] += 1
    with pytest.raises(WrongResult, match=message):
        operands.verify(found, pass_name)


def test_a_peer_may_round_twice():
    layer = gmm_api.Layer.of(TINY, "cpu")
    found = gmm_api.forward_of_ours(layer)
    found.copy_(found.double() * (1 + 1.2 * torch.finfo(found.dtype).eps))
    with pytest.raises(WrongResult):
        layer.verify(found, "forward")
    twice = {name: operands for name, _, operands in results_of(layer, "forward")}
    found = gmm_api.forward_of_ours(layer)
    found.copy_(found.double() * (1 + 1.2 * torch.finfo(found.dtype).eps))
    twice["torch grouped_mm"].verify(found, "forward")
    with pytest.raises(WrongResult):
        twice["gmm"].verify(found, "forward")


@pytest.fixture
def on_a_gpu(monkeypatch):
    measured_here(monkeypatch)
    monkeypatch.setattr(gmm_api, "models", lambda: [TINY])


def test_a_record_has_times_rates_and_reasons(on_a_gpu, monkeypatch, capsys):
    def fails(layer):
        raise RuntimeError("not here")

    kept = []
    monkeypatch.setattr(gmm_api, "by_torch", fails)
    found = gmm_api.rows(kept.append)
    entry = found["rows"]["tiny"]
    assert set(entry["us"]["forward"]) == {"gmm", "cuBLAS loop"}
    assert entry["failed"] == {"torch grouped_mm": {"prepare": "RuntimeError: not here"}}
    assert set(entry["us"]["gradients"]) == set(entry["rate"]["gradients"]) == {"ptgmm", "nptgmm", "cuBLAS loop"}
    assert all(each["median_us"] > 0 for us in entry["us"].values() for each in us.values())
    assert entry["bytes"]["gradients"] == TINY.bytes_moved("dB")
    assert set(found["speedups"]["ptgmm"]) == {"gradients"}
    assert {name: each["role"] for name, each in found["providers"].items()} == {
        "gmm": "ours", "ptgmm": "ours", "nptgmm": "ours", "torch grouped_mm": "peer", "cuBLAS loop": "peer"
    }  # fmt: skip
    assert "; dB: ptgmm" in capsys.readouterr().out
    assert len(kept) == 1


def test_a_record_has_all_that_the_recorded_one_has(on_a_gpu):
    recorded = record.load("gmm")
    found = gmm_api.rows()
    assert set(recorded) - {"provenance"} <= set(found)
    old, new = recorded["rows"]["qwen3-equal"], found["rows"]["tiny"]
    assert set(old) <= set(new)
    assert set(old["us"]) == set(new["us"])
    assert all(set(old["us"][of]) == set(new["us"][of]) for of in old["us"])


def test_a_wrong_result_of_ours_is_an_error(on_a_gpu, monkeypatch):
    monkeypatch.setattr(gmm_api, "gmm", lambda *args, existing_out, **options: existing_out)
    with pytest.raises(AssertionError, match="tiny, gmm, forward: WrongResult"):
        gmm_api.rows()
