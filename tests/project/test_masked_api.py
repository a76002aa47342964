"""The record of masked groups without a GPU: its cells, its calls against float64, and what a wrong result does."""

from __future__ import annotations

import pytest
import torch

import masked_api
from clock import Clock
from course_kernels.bench.grouped import WrongResult
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


def test_a_record_has_times_rates_and_reasons(monkeypatch):
    lines = []

    def fails():
        raise RuntimeError("not here")

    monkeypatch.setattr(masked_api, "peers", lambda o: {"peer": fails})
    found = masked_api.measure([TINY], backends=("torch",), repeats=4, device="cpu", timer=Clock(), tell=lines.append)
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
        masked_api.measure([TINY], backends=("torch",), repeats=4, device="cpu", timer=Clock(), tell=print)
