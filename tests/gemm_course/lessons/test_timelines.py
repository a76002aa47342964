"""Bars come from the simulator and from records, and add up."""

from __future__ import annotations

import pytest

from course_kernels import schedule
from gemm_course.lessons import timelines as tl

PROBLEMS = [(1024, 1024, 1024), (512, 512, 512), (256, 256, 256), (128, 128, 128)]
BLOCK = (128, 128, 64)
BARS = [(0, 0.0, 4.0, 0), (1, 0.0, 1.0, 1), (1, 2.0, 3.0, 2)]


def test_simulated_bars_hold_every_tile_at_its_time():
    simulated = schedule.simulate(PROBLEMS, "round_robin", 4, BLOCK)
    bars = tl.simulated_bars(simulated)
    assert len(bars) == simulated.tile_count
    assert max(bar.end for bar in bars) == simulated.makespan
    assert [bar.problem for bar in bars if bar.row == 0] == [span.tile.problem for span in simulated.programs[0]]


def test_measure_agrees_with_the_simulator():
    for order in schedule.ORDERS:
        simulated = schedule.simulate(PROBLEMS, order, 5, BLOCK)
        usage = tl.measure(tl.simulated_bars(simulated), 5)
        assert usage.makespan == simulated.makespan
        assert usage.utilisation == pytest.approx(simulated.utilisation)


def test_measure_counts_time_shared_by_two_tiles_once():
    assert tl.measure([(0, 0, 3, 0), (0, 1, 2, 1), (0, 2, 4, 2)], 2) == tl.Usage(4, 0.5)


def test_measure_of_nothing():
    assert tl.measure([], 3) == tl.Usage(0.0, 1.0)


def test_the_time_to_pass_a_problem_is_between_first_starts():
    assert tl.time_to_pass([(0, 0.0, 9.0, 0), (1, 0.5, 1.0, 0), (2, 2.0, 3.0, 1), (3, 5.0, 6.0, 2)]) == 2.5
    with pytest.raises(ValueError, match="two problems or more, got 1"):
        tl.time_to_pass(BARS[:1])


def test_rows_with_the_same_problems_become_neighbours():
    bars = [(0, 0, 1, 2), (1, 0, 1, 0), (1, 2, 3, 2), (2, 0, 1, 2), (4, 0, 1, 0)]
    assert tl.sorted_rows(bars) == [(2, 0, 1, 2), (1, 0, 1, 0), (1, 2, 3, 2), (3, 0, 1, 2), (0, 0, 1, 0)]
    assert tl.measure(tl.sorted_rows(bars)).makespan == tl.measure(bars).makespan


def test_recorded_bars_start_at_zero_in_microseconds():
    record = {"tiles": [[0, 0, 0, 0, 7, 31, 5_000, 9_000], [1, 2, 0, 1, 8, 30, 6_500, 7_000]]}
    assert tl.recorded_bars(record) == [(31, 0.0, 4.0, 0), (30, 1.5, 2.0, 2)]
    assert [bar.row for bar in tl.recorded_bars(record, by="program")] == [7, 8]
    with pytest.raises(ValueError, match="by is 'cta'; want 'sm' or 'program'"):
        tl.recorded_bars(record, by="cta")


RECORDED = {
    "block": [128, 256, 64],
    "problems": [[128, 512, 100], [128, 256, 64]],
    # tile, problem, m, n, program, sm, start_ns, end_ns; out of order, as programs report them
    "tiles": [[2, 1, 0, 0, 0, 7, 9_500, 10_500], [0, 0, 0, 0, 0, 7, 0, 4_000], [1, 0, 0, 1, 0, 7, 4_500, 6_500]],
}


def test_gaps_are_within_a_problem_or_between_two():
    assert tl.tile_gaps(RECORDED, same_problem=True) == [0.5]
    assert tl.tile_gaps(RECORDED, same_problem=False) == [3.0]


def test_lengths_of_tiles_are_steps_and_microseconds():
    assert tl.tile_lengths(RECORDED) == [(1, 1.0), (2, 4.0), (2, 2.0)]
    assert tl.step_times(RECORDED) == [2.0, 1.0, 1.0], "by position in the program"


def test_launch_bars_start_at_zero_in_microseconds():
    assert tl.launch_bars({"tiles": [[3, 0, 12, 1_000, 2_500], [4, 1, 13, 2_000, 3_000]]}) == [
        (12, 0.0, 1.5, 3), (13, 1.0, 2.0, 4)]  # fmt: skip
    assert tl.launch_bars({"tiles": []}) == []


def test_launch_panels_sort_the_sms_of_the_first_problem_to_the_top():
    tiles = {"a": [[0, 0, 5, 0, 1_000], [1, 0, 2, 1_000, 2_000]], "b": [[0, 0, 2, 0, 1_000], [0, 1, 9, 0, 500]]}
    panels = tl.launch_panels({name: {"tiles": each} for name, each in tiles.items()}, ["a", "b"])
    assert [bar.row for bar in panels["a"]] == [0, 1], "SM 5 worked on problem 0, SM 2 did not"
    assert [bar.row for bar in panels["b"]] == [1, 2]


def test_problem_spans_are_first_start_to_last_end():
    bars = [(0, 5, 6, 1), (1, 4, 9, 1), (0, 0, 3, 0)]
    assert tl.problem_spans(bars) == [(0, 3, 0), (4, 9, 1)]


def test_bars_on_rows_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="rows 0 to 1; want 0 to 0"):
        tl.measure(BARS, rows=1)
    with pytest.raises(ValueError, match="rows -1 to"):
        tl.measure([(-1, 0, 1, 0)])
    with pytest.raises(ValueError, match="want an end after the start"):
        tl.measure([(0, 2, 1, 0)])
