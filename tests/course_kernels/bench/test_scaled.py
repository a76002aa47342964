"""Providers of products with 8-bit operands and scales."""

from __future__ import annotations

import pytest
import torch

from bench_stand_ins import TINY_8_BIT, product
from course_kernels import runtime
from course_kernels.bench import grouped, scaled
from course_kernels.bench.operands import make_operands
from course_kernels.bench.rows import Row
from course_kernels.bench.tuning.cute_sweep import SWEPT_8_BIT, Configured

FP8 = scaled.DTYPE


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_ours_computes_scaled_products(backend):
    operands = make_operands(TINY_8_BIT, runtime.device(), FP8)
    calls = scaled.OursScaled(backend).prepare(operands)
    for of in ("forward", "called"):
        result = calls.of(of)[""]()
        operands.verify(result, of)
        assert (result.data_ptr() == operands.out.data_ptr()) == (of == "forward")
    assert not calls.d_a
    assert not calls.d_b


def test_peers_are_asked_for_the_right_products(monkeypatch):
    fast_ones = []

    def by_torch(a, b, scale_a, recipe_a, scale_b, recipe_b, *, offs, output_dtype, use_fast_accum):
        assert recipe_a is recipe_b is torch.nn.functional.ScalingType.RowWise
        fast_ones.append(use_fast_accum)
        return product(a, b, offs, scale_a, scale_b).to(output_dtype)

    def dense(a, b, *, scale_a, scale_b, out_dtype, use_fast_accum):
        assert (scale_a.shape, scale_b.shape) == ((40, 1), (1, 16))
        fast_ones.append(use_fast_accum)
        return (a.double() @ b.double() * scale_a * scale_b).to(out_dtype)

    monkeypatch.setattr(torch.nn.functional, "scaled_grouped_mm", by_torch, raising=False)
    monkeypatch.setattr(torch, "_scaled_mm", dense)
    operands = make_operands(TINY_8_BIT, "cpu", FP8)
    for provider in (scaled.TorchScaled(False), scaled.TorchScaled(True), scaled.DenseScaled()):
        assert provider.unavailable() is None
        assert provider.unsuited(TINY_8_BIT) is None
        calls = provider.prepare(operands)
        for function in calls.forward.values():
            (calls.operands or operands).verify(function(), "forward")
    assert fast_ones == [False, True, False, True]
    assert "multiples of 16" in scaled.TorchScaled(True).unsuited(Row("odd", "", (4,), 24, 32, "compute"))
    assert scaled.DenseScaled().unsuited(Row("few", "", (1,), 16, 16, "memory"))


def test_every_backend_of_ours_and_both_ways_of_torch_are_measured():
    assert [provider.name for provider in scaled.providers()] == ["triton", "cute", "torch", "torch-fast", "dense"]


@pytest.mark.gpu
def test_one_row_of_scaled_products_on_the_gpu():
    row = Row("small", "", (100, 0, 300, 7), 512, 256, "compute")
    providers = [*scaled.providers(), *map(Configured, SWEPT_8_BIT)]
    entry = grouped.measure([row], providers, passes=("forward", "called"), dtype=FP8, repeats=5).rows["small"].timings
    assert entry.failed == {}
    assert {"triton", "torch", "dense"} <= set(entry.us["forward"])
    assert all(us.median_us > 0 for by in entry.us.values() for us in by.values())
