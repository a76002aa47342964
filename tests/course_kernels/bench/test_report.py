"""Tables, closing lines and failures of results."""

from __future__ import annotations

import pytest

from bench_stand_ins import DECODE, TINY
from course_kernels.bench.measured import Measured, Results, Time, Timings
from course_kernels.bench.report import closing, failures_of_ours, require_correct, table

ROLES = {"mine": "ours", "torch": "peer", "dense": "ceiling", "quack": "peer"}


def measured(row=TINY, us=None, **timings):
    us = {of: {name: Time(each, each, each) for name, each in times.items()} for of, times in (us or {}).items()}
    return Measured.of(row, tuple(us), 2, Timings(us, **timings))


def results(*rows):
    about = {name: {"label": name, "role": role} for name, role in ROLES.items()}
    return Results("bfloat16", 4, 4.0, about, {each.row.name: each for each in rows})


def cells(shown, first):
    return next(line for line in shown.splitlines() if line.strip().startswith(first)).split()


def test_the_table_marks_the_fastest_and_not_the_ceiling():
    shown = table(measured(us={"forward": {"mine": 0.001, "torch": 0.002, "dense": 0.0005}}), ROLES)
    assert cells(shown, "forward") == ["forward", "31*", "15", "61"]
    assert "quack" not in shown


def test_a_table_has_host_time_memory_and_every_reason():
    shown = table(
        measured(
            us={"step": {"mine": 3.0}}, host_us={"mine": 7.25}, peak_bytes={"mine": 3 * 2**20},
            step_timed="as a CUDA graph", unsuited={"dense": "too small"},
            failed={"torch": {"dA": "WrongResult: 1 of 9"}},
            out_of_memory={"quack": {"step": "OutOfMemoryError: Tried to allocate"}},
        ),
        ROLES,
    )  # fmt: skip
    assert cells(shown, "host") == ["host", "µs", "7.2"]
    assert cells(shown, "peak") == ["peak", "MiB", "3"]
    for line in (
        "fwd + bwd is timed as a CUDA graph", "dense not measured: too small",
        "! torch failed, dA: WrongResult: 1 of 9", "quack out of memory, step: OutOfMemoryError: Tried to allocate",
    ):  # fmt: skip
        assert f"\n  {line}" in shown


def test_the_closing_line_has_means_and_rows_that_ran_out_of_memory():
    short = {"mine": {"dA": "OutOfMemoryError", "step": "OutOfMemoryError"}, "torch": {"step": "OutOfMemoryError"}}
    found = results(measured(us={"forward": {"mine": 2.0, "torch": 3.0}}), measured(DECODE, out_of_memory=short))
    lines = closing(found).splitlines()
    assert lines[0] == "A copy within the device's memory moves 4.00 TB/s."
    assert lines[2].split() == ["forward", "torch", "1.50", "(1.50)", "best", "peer", "1.50", "(1.50)"]
    assert lines[-2:] == ["Out of memory, so not measured:", "  tiny-decode: mine (dA, step), torch (step)"]
    assert "memory," not in closing(results(measured()))


def test_failures_are_those_of_ours_and_memory_is_none_of_them():
    failed = {name: {"dA": "WrongResult"} for name in ("mine", "torch")}
    assert failures_of_ours(results(measured(failed=failed))) == ["tiny, mine, dA: WrongResult"]
    fine = results(
        measured(out_of_memory={"mine": {"dA": "OutOfMemoryError"}}, failed={"torch": {"dA": "WrongResult"}})
    )
    assert failures_of_ours(fine) == []
    assert require_correct(fine) is fine
    with pytest.raises(AssertionError, match="wrong or failed:\ntiny, mine, dA: WrongResult"):
        require_correct(results(measured(failed=failed)))
