"""Rows and results: the same in a record and as values."""

from __future__ import annotations

import math

import pytest

from bench_stand_ins import TINY
from course_kernels.bench import record
from course_kernels.bench.measured import Measured, Results, Time, Timings, speedups


@pytest.mark.parametrize("name", ["grouped_mm", "zoo", "zoo_h100", "sustained", "scaled_grouped_mm", "jagged"])
def test_a_record_is_read_and_written_without_loss(name):
    stored = record.load(name)
    written = Results.from_json(stored).as_json()
    assert written["rows"] == stored["rows"]
    added = {"provenance", "models", "regrets", "losses", "of_dense"}  # by the program that measured
    assert written == {key: value for key, value in stored.items() if key not in added}
    assert list(written["rows"]) == list(stored["rows"])


def timings(**us):
    return Timings({"forward": {name: Time(median, median, median) for name, median in us.items()}})


def test_an_unfinished_run_and_memory_that_ran_out_are_kept():
    short = Timings({"step": {}}, out_of_memory={"mine": {"step": "OutOfMemoryError"}}, step_timed="as a CUDA graph")
    results = Results("bfloat16", 4, 4.0, {}, {"tiny": Measured.of(TINY, ("step",), 2, short)}, ("other",))
    stored = results.as_json()
    assert stored["unmeasured"] == ["other"]
    assert stored["rows"]["tiny"]["out_of_memory"] == {"mine": {"step": "OutOfMemoryError"}}
    assert Results.from_json(stored) == results


def test_rates_are_of_medians_and_of_the_rows_bytes():
    found = Measured.of(TINY, ("forward",), 1, timings(mine=10.0))
    assert found.rate == {"forward": {"mine": float(f"{TINY.flops / 10e6:.4g}")}}
    assert found.bytes == {"forward": TINY.bytes_moved("forward", 1)}
    assert found.timings.medians_us("forward") == {"mine": 10.0}
    assert found.timings.medians_us("dA") == {}


def test_means_are_geometric():
    rows = [timings(mine=1.0, torch=4.0), timings(mine=4.0, torch=2.0), timings(torch=2.0)]
    about = {"mine": {"role": "ours"}, "torch": {"role": "peer"}}
    rows = {str(number): Measured.of(TINY, ("forward",), 2, each) for number, each in enumerate(rows)}
    found = speedups(Results("bfloat16", 4, 4.0, about, rows))["mine"]["forward"]["torch"]
    assert found == {"times": round(math.sqrt(2), 3), "rows": 2, "worst": 0.5}
