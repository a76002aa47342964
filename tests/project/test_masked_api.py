"""The record of masked groups without a GPU: its cells, its calls against float64, and what a wrong result does."""

from __future__ import annotations

import pytest
import torch

import masked_api
from clock import Clock
from course_kernels import quantize_1x128, quantize_128x128
from course_kernels.bench import record
from course_kernels.bench.interface import WrongResult
from course_kernels.testing import reference
from masked_api import Cell

TINY = Cell(3, 9, 48, 160)


def test_cells_fit_into_a_gpu_and_have_rows_that_do_not_count():
    table = masked_api.cells()
    assert len(set(map(str, table))) == len(table) == 12
    for cell in table:
        counts = cell.sizes()
        assert 0 < min(counts) <= max(counts) < cell.max_m
        assert abs(sum(counts) / cell.groups / cell.rows - 1) < 0.2
        weights, rows = cell.groups * cell.N * cell.K, cell.groups * cell.max_m * (cell.N + cell.K)
        # The weight, plain, shuffled, and while it is being made and shuffled; all rows, and packed.
        assert 8 * weights + 8 * rows < 60e9


@pytest.mark.parametrize("kind", masked_api.KINDS)
def test_every_call_computes_what_is_verified(kind):
    operands, names = masked_api.make(TINY, kind, "cpu"), []
    for provider in masked_api.providers(TINY, kind, ("torch", "triton")):
        if "scaled_grouped_mm" in provider.name:
            continue  # torch has none for the CPU
        calls = provider.prepare(operands)
        operands.y.fill_(torch.nan)
        (calls.operands or operands).verify(calls.forward[""](), "forward")
        assert (calls.called == calls.forward) == (provider.role == "ours")
        names.append(provider.name)
    peers = ["torch.bmm, all rows", "torch grouped_mm, packed"] if kind == "bfloat16" else []
    assert names == ["torch", "triton", "triton, shuffled", *peers, masked_api.READ]


def test_torchs_scaled_product_gets_packed_rows_and_factors(monkeypatch):
    def product(a, b, scale_a, recipe_a, scale_b, recipe_b, *, offs, output_dtype):
        assert recipe_a is recipe_b is torch.nn.functional.ScalingType.RowWise
        return reference.grouped_mm(a, b, offs, output_dtype, scale_a=scale_a, scale_b=scale_b)

    monkeypatch.setattr(torch.nn.functional, "scaled_grouped_mm", product, raising=False)
    operands = masked_api.make(TINY, "float8", "cpu")
    (call,) = masked_api.by_scaled_grouped_mm(operands).forward.values()
    operands.verify(call(), "forward")


def test_factors_lie_as_the_quantisers_store_them():
    o = masked_api.make(TINY, "float8 blocks", "cpu")
    _, of_x = quantize_1x128(o.x.float())
    _, of_w = quantize_128x128(o.w.float())
    for ours, theirs in ((o.x_scale, of_x), (o.w_scale, of_w)):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())


def test_bytes_and_flops(monkeypatch):
    monkeypatch.setattr(Cell, "sizes", lambda cell: [4, 0, 5])
    assert TINY.bytes_moved("bfloat16") == 9 * 2 * (160 + 48) + 2 * 2 * 160 * 48
    assert TINY.flops == 2 * 9 * 160 * 48
    monkeypatch.setattr(Cell, "sizes", lambda cell: [1, 0, 0])
    assert TINY.bytes_moved("float8") == 160 + 96 + 160 * 48
    assert TINY.bytes_moved("float8 blocks") == TINY.bytes_moved("float8")


def test_wrong_rows_are_found():
    o = masked_api.make(TINY, "bfloat16", "cpu")
    calls = masked_api.providers(TINY, "bfloat16", ("torch",))[0].prepare(o)
    o.y.fill_(torch.nan)
    calls.forward[""]()
    o.y[1, 0] *= 1.1
    with pytest.raises(WrongResult, match="group 1 is wrong"):
        calls.operands.verify(o.y, "forward")
    o.y[1, 0] /= 1.1
    o.y[2, o.counts[2]] = 0.0
    with pytest.raises(WrongResult, match="rows of group 2 that do not count were written"):
        calls.operands.verify(o.y, "forward")
    o.verify(o.y, "forward")  # a peer may


def measure(table, lines):
    """With the L2 cache clean, everything takes 0.2 µs less."""
    usual, clean = Clock({"torch": 1.0, masked_api.READ: 0.5}), Clock({"torch": 0.8, masked_api.READ: 0.3})
    return masked_api.measure(
        table, backends=("torch",), repeats=4, device="cpu", timer=usual, clean_timer=clean, tell=lines.append
    )


def test_few_rows_are_timed_with_a_clean_cache_too_beside_a_read_of_the_same_bytes(monkeypatch):
    lines, many = [], TINY._replace(rows=70)
    read, counted = masked_api.clean_cache.read, []
    monkeypatch.setattr(masked_api.clean_cache, "read", lambda source: (counted.append(source.nbytes), read(source))[1])
    found = measure([TINY, many], lines)
    moved = [TINY.bytes_moved(kind) for kind in masked_api.KINDS]
    for about, of_kind in zip(found["cells"][str(TINY)]["kinds"].values(), moved, strict=True):
        assert set(about["us"]) == set(about["rates"]) == set(about["clean"]["us"]) >= {"torch"}
        for times, us, read_us in ((about, 1.0, 0.5), (about["clean"], 0.8, 0.3)):
            assert times["us"]["torch"]["median_us"] == us
            assert times["rates"]["torch"]["tb_s"] == round(of_kind / us / 1e6, 3) > 0.02
            assert times["read_tb_s"] == round(of_kind / read_us / 1e6, 3)
    for about in found["cells"][str(many)]["kinds"].values():
        assert "clean" not in about
        assert "read_tb_s" not in about
    assert set(counted) == {-(-of_kind // 4) * 4 for of_kind in moved}
    assert "torch, clean: 0.8 us, " in lines[0]
    assert lines[0].count("of a read") == 2 * lines[0].count(", clean: ")
    assert "clean" not in lines[1]


def test_a_record_has_times_rates_and_reasons(monkeypatch):
    lines = []

    def fails(operands):
        raise RuntimeError("not here")

    monkeypatch.setattr(masked_api, "PEERS", {kind: {"peer": fails} for kind in masked_api.KINDS})
    found = measure([TINY], lines)
    entry = found["cells"]["3 x 9, 48 x 160"]
    assert set(entry["kinds"]) == set(masked_api.KINDS)
    for about in entry["kinds"].values():
        assert set(about["us"]) == {"torch"}
        assert about["rates"]["torch"]["tb_s"] > 0
        assert about["host_us"]["torch"] == 5.0
        assert "not here" in about["failed"]["peer"]
    assert entry["speedup_over_bfloat16"] == {"float8": 1.0, "float8 blocks": 1.0}
    assert "of a copy" in lines[0]
    old = next(iter(record.load("masked")["cells"].values()))
    assert set(old) == set(entry)
    assert set(old["kinds"]["float8"]) == set(entry["kinds"]["float8"])
    assert set(old["kinds"]["float8"]["clean"]) == set(entry["kinds"]["float8"]["clean"])
    monkeypatch.setattr(masked_api, "deepgemm", lambda x, w, y, *others, **options: y)
    with pytest.raises(AssertionError, match=r"3 x 9, 48 x 160, bfloat16, torch: .*group 0 is wrong"):
        measure([TINY], lines)


def test_a_kind_without_memory_is_noted(monkeypatch):
    def short(operands):
        raise torch.OutOfMemoryError("Tried to allocate 14.00 GiB")

    genuine = masked_api.providers

    def providers(cell, kind, backends):
        return [masked_api.Function("torch", short, "ours")] if kind == "float8" else genuine(cell, kind, backends)

    monkeypatch.setattr(masked_api, "providers", providers)
    entry = measure([TINY], [])["cells"][str(TINY)]
    assert entry["kinds"]["float8"]["failed"] == {"torch": "OutOfMemoryError: Tried to allocate 14.00 GiB"}
    assert set(entry["speedup_over_bfloat16"]) == {"float8 blocks"}
