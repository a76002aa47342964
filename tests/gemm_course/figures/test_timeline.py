"""The timeline figures draw the bars they were given: lengths, rows, colours, idle time and the stated numbers."""

import matplotlib as mpl
import pytest

from course_kernels import schedule
from gemm_course.figures import timeline as tl
from gemm_course.figures.style import color_of

PROBLEMS = [(1024, 1024, 1024), (512, 512, 512), (256, 256, 256), (128, 128, 128)]
BLOCK = (128, 128, 64)
BARS = [(0, 0.0, 4.0, 0), (1, 0.0, 1.0, 1), (1, 2.0, 3.0, 2)]


def collection(ax, label):
    return [c for c in ax.collections if c.get_label() == label]


def extents(drawn):
    """(left, right, low, high) of each polygon."""
    return [(p.vertices[:, 0].min(), p.vertices[:, 0].max(), p.vertices[:, 1].min(), p.vertices[:, 1].max())
            for p in drawn.get_paths()]  # fmt: skip


def drawn_axes(figure):
    figure.canvas.draw()
    return [ax for ax in figure.axes if ax.get_visible()]


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


def test_a_bar_is_drawn_where_and_as_long_as_its_tile():
    (ax,) = drawn_axes(tl.timeline(BARS, rows=3, title="three rows"))
    (drawn,) = collection(ax, "tiles")
    assert [(left, right) for left, right, _, _ in extents(drawn)] == [(0, 4), (0, 1), (2, 3)]
    for (row, *_), (_, _, low, high) in zip(BARS, extents(drawn), strict=True):
        assert row - 0.5 <= low < row < high <= row + 0.5
    wanted = [mpl.colors.to_rgba(color_of(problem)) for *_, problem in BARS]
    assert [tuple(color) for color in drawn.get_facecolors()] == wanted


def test_idle_rows_are_visible_up_to_the_makespan():
    (ax,) = drawn_axes(tl.timeline(BARS, rows=3))
    (idle,) = collection(ax, "idle")
    assert [(left, right) for left, right, _, _ in extents(idle)] == [(0, 4)] * 3
    assert sorted(ax.get_ylim()) == [-0.5, 2.5]


def test_makespan_utilisation_and_bound_are_written():
    (ax,) = drawn_axes(tl.timeline(BARS, rows=3, title="three rows", bound=2.0))
    assert ax.get_title("left") == "three rows: 4 µs, 50% busy (dashed: no schedule ends before 2 µs)"
    assert any(list(line.get_xdata()) == [2.0, 2.0] for line in ax.get_lines())


def test_tiles_at_the_same_time_on_one_row_do_not_hide_each_other():
    (ax,) = drawn_axes(tl.timeline([(0, 0, 3, 0), (0, 1, 2, 1), (0, 3, 4, 2)]))
    first, second, third = extents(collection(ax, "tiles")[0])
    assert first[3] <= second[2] or second[3] <= first[2]
    assert third[2:] == first[2:]  # the lane is free again


def test_many_rows_stay_one_collection_with_a_tick_at_each_end():
    simulated = schedule.simulate([(2048, 1536, 1024)] * 3, "round_robin", 132)
    (ax,) = drawn_axes(tl.timeline(tl.simulated_bars(simulated), rows=132))
    (drawn,) = collection(ax, "tiles")
    assert len(drawn.get_paths()) == simulated.tile_count
    ticks = [c for c in ax.collections if isinstance(c, mpl.collections.LineCollection)]
    assert len(ticks[0].get_segments()) == simulated.tile_count
    assert len(ax.get_yticks()) == 2


def test_compare_shares_the_time_axis_and_names_the_problems():
    short, long = [(0, 0, 2, 0)], [(0, 0, 8, 1), (1, 0, 1, 5)]
    figure = tl.compare({"short": short, "long": long}, rows={"short": 1, "long": 2}, columns=2)
    left, right = drawn_axes(figure)
    assert left.get_xlim() == right.get_xlim()
    assert left.get_xlim()[1] >= 8
    assert [len(collection(ax, "idle")[0].get_paths()) for ax in (left, right)] == [1, 2]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["problem 0", "1", "5", "idle"]


def test_compare_ends_at_until_and_says_which_panels_are_cut():
    figure = tl.compare({"short": [(0, 0, 2, 0)], "long": [(0, 0, 90, 1)]}, until=10)
    short, long = drawn_axes(figure)
    assert short.get_xlim() == long.get_xlim() == (0, 10)
    assert short.get_title("left") == "short: 2 µs, 100% busy"
    assert long.get_title("left") == "long: 90 µs, 100% busy (cut at 10 µs)"
    (ax,) = drawn_axes(tl.compare({"short": [(0, 0, 2, 0)]}, until=10))
    assert ax.get_xlim()[1] < 3


def test_compare_says_when_colours_repeat():
    figure = tl.compare({"many": [(0, i, i + 1, i) for i in range(9)]})
    assert not figure.legends
    assert "repeat every 8" in drawn_axes(figure)[0].get_xlabel()


def test_compare_leaves_no_empty_axes_in_the_last_row():
    assert len(drawn_axes(tl.compare({str(i): BARS for i in range(3)}, columns=2))) == 3


def test_bars_on_rows_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="rows 0 to 1; want 0 to 0"):
        tl.timeline(BARS, rows=1)
    with pytest.raises(ValueError, match="rows -1 to"):
        tl.measure([(-1, 0, 1, 0)])
    with pytest.raises(ValueError, match="want an end after the start"):
        tl.measure([(0, 2, 1, 0)])
    with pytest.raises(ValueError, match="panels is empty"):
        tl.compare({})


def test_shades_grow_darker_with_the_position_of_a_problem():
    (ax,) = drawn_axes(tl.compare({"many": [(0, i, i + 1, i) for i in range(64)]}, shades=64))
    lightness = [sum(color[:3]) for color in collection(ax, "tiles")[0].get_facecolors()]
    assert len(set(lightness)) == 64, "no colour repeats"
    assert lightness == sorted(lightness, reverse=True)
    assert "from light to dark" in ax.get_xlabel()


def test_figures_are_small_enough_for_a_notebook(tmp_path):
    problems = [(2048, 1536, 8192 >> i) for i in range(8)]
    panels = {order: tl.simulated_bars(schedule.simulate(problems, order)) for order in schedule.STATIC_ORDERS}
    tl.compare(panels, rows=132).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size < 120_000
