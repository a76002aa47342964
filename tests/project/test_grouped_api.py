"""The records of grouped_mm: all rows by all providers, and large rows back to back; ours has to be right."""

from __future__ import annotations

import dataclasses
import types

import pytest

import grouped_api
from bench_stand_ins import DECODE, TINY, Correct, measured_here, spoilt
from course_kernels.bench import gpu_timer, grouped
from course_kernels.bench import providers as known
from course_kernels.bench.tuning.cute_sweep import SWEPT


@pytest.fixture
def on_a_gpu(monkeypatch):
    """The programs as on a GPU, with one tiny row, the tests' clock and providers that run here."""
    measured_here(monkeypatch)

    def prepare(providers):
        monkeypatch.setattr(known, "providers", lambda: providers)
        monkeypatch.setattr(grouped_api, "by_name", lambda: {"tiny": TINY})

    return prepare


def test_large_rows_are_measured_back_to_back(on_a_gpu, monkeypatch):
    asked = []

    def measure(rows, chosen, **arguments):
        asked.append((rows, arguments["passes"], type(arguments["timer"])))
        return grouped.measure(rows, chosen, **arguments)

    on_a_gpu([Correct(), known.Torch(), known.CublasLoop()])
    monkeypatch.setattr(grouped_api, "grouped", types.SimpleNamespace(**vars(grouped) | {"measure": measure}))
    small = dataclasses.replace(TINY, name="small", sizes=(8,))
    monkeypatch.setattr(grouped_api, "by_name", lambda: {"tiny": TINY, "small": small, "tiny-decode": DECODE})
    monkeypatch.setattr(grouped_api, "LARGE", TINY.flops)
    results = grouped_api.sustained()
    assert asked == [([TINY], ("forward",), gpu_timer.SustainedTimer)]
    assert set(results["rows"]["tiny"]["us"]) == {"forward"}
    assert set(results["rows"]["tiny"]["us"]["forward"]) == {"auto", "mine", "torch"}, "a loop is no one product"
    assert {name for name, each in results["providers"].items() if "absent" in each} == {
        config.name for config in SWEPT if config.tile_m >= 128
    }
    assert results["regrets"] == {}
    on_a_gpu([Correct(spoilt((0, 0), 9.0))])
    with pytest.raises(AssertionError, match="tiny, mine, forward: WrongResult"):
        grouped_api.sustained()


def test_the_record_refuses_wrong_results_of_ours(on_a_gpu):
    on_a_gpu([Correct(), known.Torch()])
    assert set(grouped_api.rows()["rows"]["tiny"]["us"]["dB"]) == {"auto", "mine", "torch"}
    on_a_gpu([Correct(spoilt((0, 0), 9.0)), known.Torch()])
    with pytest.raises(AssertionError, match="tiny, mine, forward: WrongResult"):
        grouped_api.rows()
