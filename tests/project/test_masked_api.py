"""The record of masked groups without a GPU: its cells, its calls against float64, and what a wrong result does."""

from __future__ import annotations

import pytest
import torch

import masked_api
from clock import Clock
from course_kernels import quantize_1x128, quantize_128x128
from course_kernels.bench.interface import WrongResult
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
    o = masked_api.make(TINY, kind, "cpu")
    right = list(masked_api.exact(o))
    for name, call in masked_api.ours(o, TINY.rows, ("torch", "triton")).items():
        o.y.fill_(torch.nan)
        masked_api.verify(name, call(), o, right)
    if kind == "bfloat16":
        for name, call in masked_api.peers(o).items():
            masked_api.verify(name, call(), o, right)


def test_factors_lie_as_the_quantisers_store_them():
    o = masked_api.make(TINY, "float8 blocks", "cpu")
    _, of_x = quantize_1x128(o.x.float())
    _, of_w = quantize_128x128(o.w.float())
    for ours, theirs in ((o.x_scale, of_x), (o.w_scale, of_w)):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())


def test_bytes_and_flops():
    o = masked_api.make(TINY, "bfloat16", "cpu")._replace(counts=[4, 0, 5])
    assert o.bytes_moved == 9 * 2 * (160 + 48) + 2 * 2 * 160 * 48
    assert o.flops == 2 * 9 * 160 * 48
    assert masked_api.make(TINY, "float8", "cpu")._replace(counts=[1, 0, 0]).bytes_moved == 160 + 96 + 160 * 48


def test_wrong_rows_are_found():
    o = masked_api.make(TINY, "bfloat16", "cpu")
    right = list(masked_api.exact(o))
    o.y.fill_(torch.nan)
    next(iter(masked_api.ours(o, 9, ("torch",)).values()))()
    o.y[1, 0] *= 1.1
    with pytest.raises(WrongResult, match="torch is wrong in group 1"):
        masked_api.verify("torch", o.y, o, right)
    o.y[1, 0] /= 1.1
    o.y[2, o.counts[2]] = 0.0
    with pytest.raises(WrongResult, match="written rows of group 2"):
        masked_api.verify("torch", o.y, o, right)
    masked_api.verify("a peer, which may", o.y, o, right)


class TwoClocks(Clock):
    """With the L2 cache clean, everything takes 0.2 µs less."""

    def __init__(self):
        super().__init__({"torch": 1.0, masked_api.READ: 0.5})

    def clean_us(self, functions, repeats):
        return {name: [us - 0.2 for us in times] for name, times in self.interleaved_us(functions, repeats).items()}


def test_few_rows_are_timed_with_a_clean_cache_too_beside_a_read_of_the_same_bytes(monkeypatch):
    lines, many = [], TINY._replace(rows=70)
    read, counted = masked_api.clean_cache.read, []
    monkeypatch.setattr(masked_api.clean_cache, "read", lambda source: (counted.append(source.nbytes), read(source)))
    found = masked_api.measure(
        [TINY, many], backends=("torch",), repeats=4, device="cpu", timer=TwoClocks(), tell=lines.append
    )
    moved = [masked_api.make(TINY, kind, "cpu").bytes_moved for kind in masked_api.KINDS]
    for about, of_kind in zip(found["cells"][str(TINY)]["kinds"].values(), moved, strict=True):
        assert set(about["us"]) == set(about["rates"]) == set(about["clean"]["us"]) >= {"torch"}
        for times, us, read_us in ((about, 1.0, 0.5), (about["clean"], 0.8, 0.3)):
            assert times["us"]["torch"]["median_us"] == us
            assert times["rates"]["torch"]["tb_s"] == round(of_kind / us / 1e6, 3) > 0.02
            assert times["read_tb_s"] == round(of_kind / read_us / 1e6, 3)
    for about in found["cells"][str(many)]["kinds"].values():
        assert "clean" not in about
        assert "read_tb_s" not in about
    # A captured call runs once, then once for each clock.
    assert counted == [-(-of_kind // 4) * 4 for of_kind in moved for _ in range(3)]
    assert "torch, clean: 0.8 us, " in lines[0]
    assert lines[0].count("of a read") == 2 * lines[0].count(", clean: ")
    assert "clean" not in lines[1]


def test_a_record_has_times_rates_and_reasons(monkeypatch):
    lines = []

    def fails():
        raise RuntimeError("not here")

    monkeypatch.setattr(masked_api, "peers", lambda o: {"peer": fails})
    found = masked_api.measure(
        [TINY], backends=("torch",), repeats=4, device="cpu", timer=TwoClocks(), tell=lines.append
    )
    entry = found["cells"]["3 x 9, 48 x 160"]
    assert set(entry["kinds"]) == set(masked_api.KINDS)
    for about in entry["kinds"].values():
        assert set(about["us"]) == {"torch"}
        assert about["rates"]["torch"]["tb_s"] > 0
        assert about["host_us"]["torch"] == 5.0
        assert "not here" in about["failed"]["peer"]
    assert entry["speedup_over_bfloat16"] == {"float8": 1.0, "float8 blocks": 1.0}
    assert "of a copy" in lines[0]
    monkeypatch.setattr(masked_api, "deepgemm", lambda x, w, y, *others, **options: y)
    with pytest.raises(WrongResult, match="torch is wrong in group 0"):
        masked_api.measure([TINY], backends=("torch",), repeats=4, device="cpu", timer=TwoClocks(), tell=print)
