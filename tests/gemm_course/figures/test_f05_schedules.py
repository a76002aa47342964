"""The figures about schedules draw the numbers they were given, and label them."""

import pytest

from course_kernels.schedule import tiles
from drawn import texts
from gemm_course.figures import f05_schedules as schedules

PROBLEM, BLOCK = (1024, 2048, 8192), (128, 256, 64)  # 8 x 8 tiles


def axes_of(figure):
    figure.canvas.draw()
    return figure.axes


def labelled(ax, label):
    (found,) = [artist for artist in [*ax.collections, *ax.lines] if artist.get_label() == label]
    return found


def test_waves_fall_after_each_full_wave():
    (ax,) = axes_of(schedules.waves(4, (8, 9), longest=3))
    curve = dict(zip(*ax.lines[0].get_data(), strict=True))
    assert curve == {n: pytest.approx(n / (-(-n // 4) * 4)) for n in range(1, 13)}
    assert texts(ax) == ["8 tiles: 100%", "9 tiles: 75%"]


def test_labels_of_waves_stand_above_every_tooth_and_apart():
    (ax,) = axes_of(schedules.waves(132, (96, 133)))
    left, right = (text.get_window_extent() for text in ax.texts)
    assert not left.overlaps(right)
    assert all(ax.transData.inverted().transform((0, box.y0))[1] > 1 for box in (left, right))
    assert ax.transData.inverted().transform((left.x0, 0))[0] >= 0, "the first label is right of the axis"


@pytest.mark.parametrize(("group_m", "panels"), [(1, (2, 8)), (4, (4, 4)), (8, (8, 2))])
def test_panels_of_the_first_wave(group_m, panels):
    assert schedules.panels_of(PROBLEM, BLOCK, 16, group_m) == panels


def test_panels_of_a_wave_that_does_not_fill_its_strip():
    # Four and a half columns of a strip of four rows: the ninth pair of tiles opens a fifth column.
    assert schedules.panels_of(PROBLEM, BLOCK, 18, 4) == (4, 5)


def test_working_set_draws_the_first_wave_and_its_panels():
    figure = schedules.working_set(PROBLEM, BLOCK, 16, (1, 4))
    for ax, group_m in zip(axes_of(figure), (1, 4), strict=True):
        first = tiles([PROBLEM], 128, 256, group_m)[:16]
        corners = {tuple(path.vertices.min(axis=0)) for path in labelled(ax, "C").get_paths()}
        assert corners == {(tile.n, tile.m * 0.5) for tile in first}
        rows, cols = schedules.panels_of(PROBLEM, BLOCK, 16, group_m)
        assert len(labelled(ax, "A").get_paths()) == rows
        assert len(labelled(ax, "B").get_paths()) == cols
        mib = (rows * 128 + cols * 256) * 8192 * 2 / 2**20
        assert f"group_m = {group_m}: {mib:.0f} MiB of A and B\n{rows} row panels, {cols} column panels" in texts(ax)


def test_traffic_draws_every_value_in_megabytes():
    rows = {"one": {"model": 4e6, "measured": 5e6}, "two": {"model": 2e6, "measured": 3e6}}
    (ax,) = axes_of(schedules.traffic(rows, compulsory=1e6, title="bytes"))
    assert sorted(bar.get_width() for bar in ax.patches) == [2, 3, 4, 5]
    assert " 5 MB   measured" in texts(ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "two"]
    assert list(ax.lines[0].get_xdata()) == [1, 1]


@pytest.mark.parametrize("names", [("model", "H200"), ("model", "corrected", "H200")])
def test_model_against_record_draws_predictions_over_the_record(names):
    rows = {"first": (1.0, 2.0, 3.0)[: len(names)], "second": (6.0, 5.0, 4.0)[: len(names)]}
    (ax,) = axes_of(schedules.model_against_record(rows, names))
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if len(line.get_xdata()) == 1]
    assert dots == [(time / times[-1], row) for row, times in enumerate(rows.values()) for time in times[:-1]]
    last = [times[-1] for times in rows.values()]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        f"{name}   ({us:.0f} µs)" for name, us in zip(rows, last)
    ]
    low, high = ax.get_xlim()
    assert all(low < x < high for x in (1, *(ratio for ratio, _ in dots)))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(names)


def test_model_against_record_refuses_a_row_of_the_wrong_length():
    with pytest.raises(ValueError, match=r"rows\['short'\] is \(1.0,\); want 2 times"):
        schedules.model_against_record({"short": (1.0,)})


def test_tile_times_draws_tiles_and_lines():
    recorded = [(2, 3.0), (2, 3.5), (10, 9.0)]
    (ax,) = axes_of(schedules.tile_times(recorded, {"model": (1.0, 0.8)}))
    dots, line = labelled(ax, "recorded"), labelled(ax, "model")
    assert list(dots.get_ydata()) == [3.0, 3.5, 9.0]
    assert [round(x) for x in dots.get_xdata()] == [2, 2, 10]
    assert list(line.get_xdata()) == [0, 10]
    assert list(line.get_ydata()) == [1.0, 9.0]
    assert " model: 1.0 µs\n + 0.80 µs per step" in texts(ax)
    assert "recorded tiles" in texts(ax)
