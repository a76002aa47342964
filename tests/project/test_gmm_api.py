"""The record of gmm without a GPU: its rows, its calls against float64, and what a wrong result does."""

from __future__ import annotations

import pytest
import torch

import gmm_api
from bench_stand_ins import TINY
from clock import Clock
from course_kernels.bench.interface import WrongResult


def test_rows_are_models_evenly_and_by_zipf():
    table = gmm_api.models()
    assert len(table) == 2 * len(gmm_api.MODELS) == len({row.name for row in table})
    for row, (_, _, total, groups, N, K) in zip(table, (model for model in gmm_api.MODELS for _ in range(2))):
        assert (row.total_m, row.groups, row.N, row.K) == (total, groups, N, K)
    assert max(table[0].sizes) - min(table[0].sizes) <= 1 < max(table[1].sizes) / min(table[1].sizes)
    # Operands, their memory for results and a peer's result stay below the memory of an H100.
    assert all(2 * (4 * row.groups * row.N * row.K + 6 * row.total_m * (row.N + row.K)) < 70e9 for row in table)


@pytest.mark.parametrize("pass_name", gmm_api.CALLS)
def test_every_call_computes_what_is_verified(pass_name):
    layer = gmm_api.Layer.of(TINY, "cpu")
    for name, call in gmm_api.CALLS[pass_name](layer).items():
        for tensor in (layer.matrices.out, layer.matrices.d_weight, layer.bias_grad):
            tensor.fill_(torch.nan)
        gmm_api.verify(call(), layer, pass_name)
        assert name in (*gmm_api.OURS, "torch grouped_mm", "cuBLAS loop")


@pytest.mark.parametrize(
    ("pass_name", "which", "message"),
    [("forward", 0, "rows of group 2"), ("gradients", 0, "weights' gradient of group 2"), ("gradients", 1, "bias's")],
)
def test_a_wrong_element_is_found(pass_name, which, message):
    layer = gmm_api.Layer.of(TINY, "cpu")
    found = next(iter(gmm_api.CALLS[pass_name](layer).values()))()
    found[which][20 if pass_name == "forward" else 2, 3] += 1
    with pytest.raises(WrongResult, match=message):
        gmm_api.verify(found, layer, pass_name)


def test_a_peer_may_round_twice():
    layer = gmm_api.Layer.of(TINY, "cpu")
    found = gmm_api.forward_calls(layer)["gmm"]()[0]
    found.copy_(found.double() * (1 + 1.2 * torch.finfo(found.dtype).eps))
    with pytest.raises(WrongResult):
        gmm_api.verify([found], layer, "forward")
    gmm_api.verify([found], layer, "forward", roundings=2)


def test_a_record_has_times_rates_and_reasons(monkeypatch):
    lines = []

    def fails():
        raise RuntimeError("not here")

    genuine = gmm_api.forward_calls
    monkeypatch.setitem(gmm_api.CALLS, "forward", lambda layer: genuine(layer) | {"torch grouped_mm": fails})
    found = gmm_api.measure([TINY], repeats=4, device="cpu", timer=Clock(), tell=lines.append)
    entry = found["rows"]["tiny"]
    assert set(entry["us"]["forward"]) == {"gmm", "cuBLAS loop"}
    assert "not here" in entry["failed"]["forward"]["torch grouped_mm"]
    assert set(entry["us"]["gradients"]) == {"ptgmm", "nptgmm", "torch grouped_mm", "cuBLAS loop"}
    assert all(each["median_us"] > 0 for us in entry["us"].values() for each in us.values())
    assert len(lines) == 2
    assert "gradients: ptgmm" in lines[1]


def test_a_wrong_result_of_ours_is_an_error(monkeypatch):
    monkeypatch.setattr(gmm_api, "gmm", lambda *args, existing_out, **options: existing_out)
    with pytest.raises(AssertionError, match="gmm on tiny: WrongResult"):
        gmm_api.measure([TINY], repeats=4, device="cpu", timer=Clock(), tell=print)
