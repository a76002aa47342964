"""The figures of groups carry the numbers that they were given."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from gemm_course.figures import f01_ragged_groups as groups
from gemm_course.figures.style import color_of


def texts(figure):
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def fill(patch):
    return to_hex(patch.get_facecolor()).upper()


def with_gid(figure, start):
    return [patch for patch in figure.axes[0].patches if (patch.get_gid() or "").startswith(start)]


def line(figure, gid):
    (found,) = [each for each in figure.axes[0].lines if each.get_gid() == gid]
    return found


def test_padding_fills_every_group_up_to_the_largest():
    batches = {"even": [4, 4], "odd": [6, 0, 3]}
    figure = groups.padded_batches(batches)
    assert len(figure.axes) == 2
    for ax, (name, sizes) in zip(figure.axes, batches.items()):
        real, padding = ax.patches[: len(sizes)], ax.patches[len(sizes) :]
        assert [bar.get_height() for bar in real] == sizes
        assert [bar.get_y() + bar.get_height() for bar in padding] == [max(sizes)] * len(sizes)
        assert all(bar.get_hatch() for bar in padding)
        assert ax.get_title(loc="left").startswith(name)
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim(), "one scale"
    assert "8 rows + 0 padding: +0%" in figure.axes[0].get_title(loc="left")
    assert "9 rows + 9 padding: +100%" in figure.axes[1].get_title(loc="left")


def test_a_batch_without_rows_is_drawn():
    assert "+0%" in groups.padded_batches({"none": [0, 0]}).axes[0].get_title(loc="left")


def test_waste_curve_passes_through_its_points_below_the_one_hot_limit():
    figure = groups.waste_curve([0, 1, 2], [0.0, 1.5, 2.5], groups=4)
    x, y = line(figure, "waste").get_data()
    assert (list(x), list(y)) == ([0, 1, 2], [0.0, 1.5, 2.5])
    assert set(line(figure, "one-hot").get_ydata()) == {3}
    assert "uniform: 0.00" in texts(figure)
    assert "Zipf, exponent 1: 1.50" in texts(figure)


def numbers_at(figure, y):
    """(x, number) of the texts of one line, from the left."""
    on_line = [text for text in figure.axes[0].texts if text.get_position()[1] == y]
    found = [text for text in on_line if text.get_text().lstrip("-").isdigit()]
    return sorted((text.get_position()[0], int(text.get_text())) for text in found)


def test_five_descriptions_stand_under_the_rows_that_they_describe():
    figure = groups.descriptions([4, 0, 3], tail=2)
    rows = with_gid(figure, "row")
    assert [fill(row) for row in rows[:7]] == [color_of(0)] * 4 + [color_of(2)] * 3
    assert len(rows) == 9
    assert rows[-1].get_hatch()
    lines = {y: numbers_at(figure, y) for y in (-0.6, -1.5, -2.4, -3.3, -5.75)}
    assert [number for _, number in lines[-0.6]] == [0, 0, 0, 0, 2, 2, 2, -1, -1]
    assert [number for _, number in lines[-1.5]] == [4, 0, 3]
    assert [number for _, number in lines[-2.4]] == [4, 4, 7]
    assert [number for _, number in lines[-3.3]] == [0, 4, 4, 7]
    assert [number for _, number in lines[-5.75]] == [4, 0, 3]
    assert lines[-2.4][-1][0] == 7, "an end stands at the boundary that it names"
    assert "group 1: empty" in texts(figure)
    assert "tail" in texts(figure)


def test_masked_slots_are_used_from_the_front():
    figure = groups.descriptions([2, 0, 3], max_m=4)
    for g, size in enumerate([2, 0, 3]):
        slots = with_gid(figure, f"slot{g}.")
        assert [bool(slot.get_hatch()) for slot in slots] == [False] * size + [True] * (4 - size)
    right = max(slot.get_x() + slot.get_width() for slot in with_gid(figure, "slot"))
    assert right == pytest.approx(5), "as wide as the packed matrix above"


def test_misread_rows_are_framed():
    figure = groups.misread([0, 0, 1, 1, 2], [-1, 0, 1, 0, 2])
    assert sorted(patch.get_x() for patch in with_gid(figure, "wrong")) == [0, 3]
    assert [fill(patch) for patch in with_gid(figure, "taken")] == [
        "#FFFFFF", color_of(0), color_of(1), color_of(0), color_of(2),
    ]  # fmt: skip
    assert any(text.startswith("2 of 5 rows") for text in texts(figure))


def test_intensity_is_drawn_with_its_ridge_and_marks():
    figure = groups.intensity_curve([1, 16, 256], [1.0, 15.0, 150.0], ridge=200, marks=[1, 256])
    ax = figure.axes[0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert list(line(figure, "intensity").get_ydata()) == [1.0, 15.0, 150.0]
    assert set(line(figure, "ridge").get_ydata()) == {200}
    marked = [(each.get_xdata()[0], each.get_ydata()[0]) for each in ax.lines if each.get_gid() == "mark"]
    assert marked == [(1, 1.0), (256, 150.0)]
    assert "1 row: 1" in texts(figure)
    assert "256 rows: 150" in texts(figure)
    assert ax.get_ylim()[1] > 200


@pytest.mark.parametrize(
    "figure",
    [
        lambda: groups.padded_batches({"a": [3, 1], "b": [4, 0], "c": [2, 2]}),
        lambda: groups.waste_curve([0, 1, 2], [0.0, 1.0, 2.0], 8),
        lambda: groups.descriptions([4, 0, 6, 3], 2),
        lambda: groups.misread([0, 1], [1, 0]),
        lambda: groups.intensity_curve([1, 2], [1.0, 2.0], 10.0),
    ],
    ids=["padded_batches", "waste_curve", "descriptions", "misread", "intensity_curve"],
)
def test_figures_fit_a_notebook_and_nothing_is_smaller_than_8_points(figure):
    drawn = figure()
    drawn.draw_without_rendering()
    assert drawn.get_figwidth() <= 9
    canvas = drawn.bbox
    for ax in drawn.axes:
        for text in [*ax.texts, ax._left_title]:
            if text.get_text():
                box = text.get_window_extent()
                assert text.get_fontsize() >= 8
                assert box.x0 >= canvas.x0 - 1, text.get_text()
                assert box.x1 <= canvas.x1 + 1, text.get_text()
