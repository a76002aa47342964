"""Figures of matrices in memory: offsets, masks, errors and writes are what the data says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from drawn import texts
from gemm_course.figures import matrices as memory
from gemm_course.figures.style import GREEN, ORANGE, SKY, WIDTH, WRONG
from gemm_course.lessons import canaries

CANARY = -999.0


def boxes(axes, color):
    """Rectangles of a face colour, as (x, y, width, height)."""
    found = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_fill()]
    return [
        (*p.get_xy(), p.get_width(), p.get_height())
        for p in found
        if to_hex(p.get_facecolor()).lower() == to_hex(color).lower()
    ]


# ---- offsets


def test_every_element_shows_its_offset_and_the_gap_of_the_leading_dimension():
    axes = memory.tile_offsets((3, 4), (2, 2), (1, 1), (6, 1)).axes[0]
    numbers = [text for text in texts(axes) if text.isdigit()]
    assert numbers == [str(6 * i + j) for i in range(3) for j in range(6)], "two gap elements a row"
    assert {"next row: +6", "next column: +1"} <= set(texts(axes))
    assert boxes(axes, SKY) == [(j, i, 1, 1) for i in (1, 2) for j in (1, 2)]
    assert axes.get_title("left") == "A (3 × 4): a 2 × 2 tile at (1, 1)"


def test_offsets_follow_both_strides():
    axes = memory.tile_offsets((2, 3), (1, 1), strides=(1, 2), name="B").axes[0]
    assert [text for text in texts(axes) if text.isdigit()] == ["0", "2", "4", "1", "3", "5"]
    assert {"next row: +1", "next column: +2"} <= set(texts(axes))


def test_what_a_mask_must_switch_off_is_red_and_counted():
    axes = memory.tile_offsets((3, 4), (2, 2), (2, 3)).axes[0]
    assert boxes(axes, SKY) == [(3, 2, 1, 1)]
    assert axes.get_title("left").endswith(", 3 of its elements outside A")
    red = [t for t in axes.texts if t.get_text().isdigit() and t.get_color() == WRONG]
    assert len(red) == 3
    assert {tuple(np.floor(t.get_position()).astype(int)) for t in red} == {(4, 2), (3, 3), (4, 3)}


def test_a_tile_wholly_outside_has_no_element_inside():
    assert "4 of its elements outside" in memory.tile_offsets((2, 2), (2, 2), (2, 2)).axes[0].get_title("left")


# ---- one tile of a product


def test_a_tile_is_drawn_with_its_bands_of_a_and_b():
    figure = memory.tile_of_product((64, 96, 64), (32, 32, 32), (1, 2), 0)
    axes = figure.axes[0]
    assert axes.get_title("left") == "One program: tile (1, 2), step 1 of 2 along K"
    assert {"M = 64 ", "N = 96", "K = 64"} <= set(texts(axes))
    (tile,) = boxes(axes, SKY)
    assert tile == (64, 32, 32, 32), "C's element (32, 64) is its top left corner"
    a, b = boxes(axes, ORANGE), boxes(axes, GREEN)
    assert [box[1:] for box in a] == [(32, 32, 32)] * 2, "A's blocks lie in the tile's rows"
    assert [(box[0], box[2], box[3]) for box in b] == [(64, 32, 32)] * 2, "B's blocks lie in the tile's columns"
    assert a[1][0] - a[0][0] == b[1][1] - b[0][1] == 32
    assert not [p for p in axes.patches if p.get_hatch()]
    assert max(figure.get_size_inches()) <= WIDTH


def test_blocks_that_stick_out_are_hatched_at_full_size_and_coloured_inside():
    axes = memory.tile_of_product((50, 80, 72), (32, 32, 32), (1, 2), 2).axes[0]
    hatched = [p for p in axes.patches if p.get_hatch()]
    assert [(p.get_width(), p.get_height()) for p in hatched] == [(32, 32)] * 3
    assert boxes(axes, SKY)[0][2:] == (16, 18)
    assert boxes(axes, ORANGE)[-1][2:] == (8, 18)
    assert boxes(axes, GREEN)[-1][2:] == (16, 8)


# ---- errors


def test_an_error_map_holds_the_errors_and_counts_them():
    want = torch.zeros(4, 6, dtype=torch.float16)
    got = want.clone()
    got[1, 2], got[3, 5], got[0, 0] = 3, -8, float("nan")
    figure = memory.error_map(got, want, block=(2, 4), title="case")
    axes, scale = figure.axes
    image = axes.images[0]
    drawn = np.ma.filled(image.get_array(), np.nan)
    np.testing.assert_array_equal(drawn, (got - want).double().numpy())
    assert axes.get_title("left") == "case: 3 of 24 wrong"
    assert image.get_clim() == (-8, 8)
    assert scale.get_ylabel() == "got − want, black: NaN"
    lines = [tuple(line.get_xydata().ravel()) for line in axes.lines]
    assert lines == [(-0.5, 1.5, 5.5, 1.5), (3.5, -0.5, 3.5, 3.5)], "tile boundaries at row 2 and column 4"


def test_equal_infinities_are_no_error_and_a_right_result_has_no_scale():
    same = np.array([[np.inf, 1.0]])
    figure = memory.error_map(same, same)
    assert figure.axes[0].get_title("left") == "0 of 2 elements wrong"
    assert len(figure.axes) == 1


def test_a_result_of_nan_alone_says_so_without_a_scale():
    figure = memory.error_map(np.full((2, 3), np.nan), np.zeros((2, 3)))
    assert len(figure.axes) == 1
    assert texts(figure.axes[0]) == ["black: NaN"]
    assert figure.axes[0].get_title("left") == "6 of 6 elements wrong"


def test_an_infinite_error_is_black_and_named():
    figure = memory.error_map(np.array([[np.inf, 2.0]]), np.array([[1.0, 1.0]]))
    assert figure.axes[1].get_ylabel() == "got − want, black: infinite"
    assert figure.axes[0].images[0].get_clim() == (-1, 1), "the scale is that of the finite errors"


def test_white_is_right_and_the_sign_chooses_the_side():
    axes = memory.error_map(np.array([[1.0, 0.0, -1.0]]), np.zeros((1, 3)), limit=1.0).axes[0]
    image = axes.images[0]
    large, right, small = (to_hex(image.to_rgba(np.array([value]))[0]) for value in (1.0, 0.0, -1.0))
    assert right == "#ffffff"
    assert large == WRONG.lower()
    assert small not in (right, large)


# ---- writes


@pytest.mark.parametrize("canary", [CANARY, float("nan")])
def test_each_element_of_the_buffer_gets_its_state(canary):
    want = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    buffer = torch.full((4, 5), canary)
    buffer[1:3, 2:4] = torch.tensor([[1.0, 9.0], [canary, 4.0]])
    buffer[3, 2] = 7
    states = canaries.write_states(buffer, (1, 2), want, canary)
    expected = np.full((4, 5), canaries.UNTOUCHED)
    expected[1:3, 2:4] = [[canaries.RIGHT, canaries.INCORRECT], [canaries.MISSING, canaries.RIGHT]]
    expected[3, 2] = canaries.OUTSIDE
    np.testing.assert_array_equal(states, expected)


def test_a_nan_written_over_a_number_is_seen():
    buffer = torch.full((2, 2), CANARY)
    buffer[1, 1] = float("nan")
    assert canaries.write_states(buffer, (0, 0), torch.zeros(1, 1), CANARY)[1, 1] == canaries.OUTSIDE


def test_the_map_draws_the_states_outlines_the_output_and_counts():
    want = np.ones((2, 3))
    buffer = np.full((6, 7), CANARY)
    buffer[2:5, 2:5] = 1  # a row too many
    axes = memory.written_map(buffer, (2, 2), want, CANARY, block=(2, 2), title="no mask").axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), canaries.write_states(buffer, (2, 2), want, CANARY))
    assert axes.get_title("left") == "no mask: 3 elements written outside C"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["canary, untouched: 33", "right: 6", "written outside: 3"]
    (outline,) = [p for p in axes.patches if not p.get_fill()]
    assert (*outline.get_xy(), outline.get_width(), outline.get_height()) == (1.5, 1.5, 3, 2)


def test_a_clean_run_says_that_nothing_was_written_outside():
    buffer = np.full((3, 3), CANARY)
    buffer[1, 1] = 5
    assert memory.written_map(buffer, (1, 1), np.full((1, 1), 5.0), CANARY).axes[0].get_title("left") == (
        "nothing written outside C"
    )


def test_the_colours_of_the_states_differ():
    assert len(set(memory.STATE_COLORS)) == len(canaries.STATES) == 5
    assert memory.STATE_COLORS[canaries.OUTSIDE] == WRONG


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: memory.tile_offsets((0, 4), (2, 2)), "shape must be 2 integers of at least 1"),
        (lambda: memory.tile_offsets((2, 4), (2, 2, 2)), "block must be 2 integers"),
        (lambda: memory.tile_offsets((50, 50), (2, 2)), "small enough to label"),
        (lambda: memory.tile_of_product((4, 4, 4), (2, 2, 2), (2, 0)), "tile must be within the 2 x 2 tiles"),
        (lambda: memory.tile_of_product((4, 4, 4), (2, 2, 2), step=2), "step must be from 0 to 1"),
        (lambda: memory.error_map(np.zeros((2, 2)), np.zeros((2, 3))), "matrices of one shape"),
        (lambda: canaries.write_states(np.zeros((3, 3)), (2, 2), np.zeros((2, 2)), 0.0), "must lie within the buffer"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
