"""The figures of lesson 04 carry their data: owners, tables, strip and canary."""

from __future__ import annotations

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_kernels import schedule
from drawn import texts
from gemm_course.figures import f04_ownership as ownership
from gemm_course.figures.style import SKY, WRONG, color_of

THREE = [(50, 96, 32), (32, 64, 32), (64, 40, 32)]  # 6, 2 and 4 tiles of 32 x 32


def rectangles(ax, filled=True):
    return [p for p in ax.patches if isinstance(p, Rectangle) and p.get_fill() == filled]


def color(patch):
    return to_hex(patch.get_facecolor()).upper()


def test_every_tile_has_its_programs_colour_and_the_extent_that_exists():
    programs_of = [tile.index % 4 for tile in schedule.tiles(THREE, 32, 32)]
    (ax,) = ownership.owners(THREE, (32, 32), programs_of).axes
    drawn = rectangles(ax)
    assert [color(patch) for patch in drawn] == [color_of(program).upper() for program in programs_of]
    extents = [(tile.cols, tile.rows) for tile in schedule.tiles(THREE, 32, 32)]
    assert [(patch.get_width(), patch.get_height()) for patch in drawn] == extents
    assert [text for text in texts(ax) if text.isdigit()] == [str(program) for program in programs_of]
    whole = [patch for patch in rectangles(ax, filled=False) if (patch.get_width(), patch.get_height()) == (32, 32)]
    assert len(whole) == sum(extent != (32, 32) for extent in extents)


def test_a_strip_too_thin_for_its_number_has_it_in_the_rest_of_its_tile():
    (ax,) = ownership.owners([(34, 32, 8), (32, 35, 8), (32, 900, 8)], (32, 32), [0] * 33).axes
    places = [text.get_position() for text in ax.texts if text.get_text() == "0"]
    assert places[0] == (16, 16)
    assert places[1] == (16, 32 + (2 + 32) / 2), "below the two rows"
    first = rectangles(ax)[2].get_x()
    assert places[3] == (pytest.approx(first + 32 + (3 + 32) / 2), 16), "right of the three columns"


def test_tiles_lie_where_their_problem_and_position_say():
    (ax,) = ownership.owners(THREE, (32, 32), range(12)).axes
    corners = [(patch.get_x(), patch.get_y()) for patch in rectangles(ax)]
    assert corners[:6] == [(0, 0), (32, 0), (64, 0), (0, 32), (32, 32), (64, 32)]
    assert corners[7][0] - corners[6][0] == 32
    assert corners[6][0] > 96, "the second matrix begins right of the first"


def test_strips_of_tile_rows_change_the_place_of_a_tile():
    (ax,) = ownership.owners([(64, 64, 32)], (32, 32), [0, 1, 2, 3], group_m=2).axes
    assert [(patch.get_x(), patch.get_y()) for patch in rectangles(ax)] == [(0, 0), (0, 32), (32, 0), (32, 32)]


def test_a_tile_without_a_program_is_an_outline_in_the_colour_of_errors():
    (ax,) = ownership.owners([(32, 64, 32)], (32, 32), [0, -1]).axes
    missing = rectangles(ax)[1]
    assert to_hex(missing.get_edgecolor()).upper() == WRONG
    assert color(missing) == "#FFFFFF"


def test_an_empty_problem_is_named_and_has_no_tiles():
    (ax,) = ownership.owners([(32, 32, 32), (0, 32, 32)], (32, 32), [0]).axes
    assert "C1 0×32" in texts(ax)
    assert texts(ax).count("no tiles") == 1


def test_owners_wants_one_program_per_tile():
    with pytest.raises(ValueError, match="12 tiles, got 3"):
        ownership.owners(THREE, (32, 32), [0, 1, 2])


def test_strip_numbers_tiles_and_deals_them_round_robin():
    (ax,) = ownership.tile_strip(THREE, (32, 32), programs=4).axes
    cells = rectangles(ax)
    assert [color(patch) for patch in cells] == [color_of(i % 4).upper() for i in range(12)]
    found = texts(ax)
    assert {"problem 0: 6 tiles", "problem 1: 2 tiles", "problem 2: 4 tiles"} <= set(found)
    assert [text for text in found if "," in text and text[0].isdigit()] == [
        f"{tile.m},{tile.n}" for tile in schedule.tiles(THREE, 32, 32)
    ]


@pytest.mark.parametrize(("follow", "arcs"), [(0, 2), (3, 2), (None, 0)])
def test_strip_shows_the_steps_of_one_program(follow, arcs):
    (ax,) = ownership.tile_strip(THREE, (32, 32), programs=4, follow=follow).axes
    assert sum(isinstance(patch, FancyArrowPatch) for patch in ax.patches) == arcs
    assert texts(ax).count("+4") == arcs


def test_tables_show_every_row_and_the_two_loads_of_one():
    (ax,) = ownership.pointer_tables(THREE, [(32, 1), (1, 32), (80, 1)], follow=1).axes
    found = texts(ax)
    assert {"50, 96, 32", "32, 64, 32", "64, 40, 32", "32, 1", "1, 32", "80, 1", "1", "2"} <= set(found)
    lit = [patch for patch in rectangles(ax) if color(patch) == SKY]
    assert len(lit) == 3
    assert len({patch.get_y() for patch in lit}) == 1
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == 2


def test_matrices_beside_the_tables_are_to_scale():
    (ax,) = ownership.pointer_tables([(128, 8, 128), (64, 8, 128)]).axes
    first, second = (next(p for p in rectangles(ax) if color(p) == color_of(g).upper()) for g in range(2))
    assert first.get_height() == pytest.approx(2 * second.get_height())
    assert first.get_width() == pytest.approx(second.get_width())


def test_tables_follow_a_problem_that_exists():
    with pytest.raises(ValueError, match="from 0 to 2, got 3"):
        ownership.pointer_tables(THREE, follow=3)


def buffer_with(rows, cols):
    buffer = torch.full((40, 40), float("nan"), dtype=torch.float16)
    buffer[4 : 4 + rows, 4 : 4 + cols] = 1
    return buffer


def test_canary_counts_what_was_written_where():
    count = ownership.count_canary
    assert count(buffer_with(20, 16), (20, 16), (4, 4)) == dict(intact=1280, written=320, overwritten=0, missing=0)
    assert count(buffer_with(32, 32), (20, 16), (4, 4)) == dict(intact=576, written=320, overwritten=704, missing=0)
    assert count(buffer_with(20, 10), (20, 16), (4, 4)) == dict(intact=1280, written=200, overwritten=0, missing=120)


def test_canary_draws_each_buffer_and_says_how_it_fared():
    figure = ownership.canary({"bad": buffer_with(32, 32), "good": buffer_with(20, 16)}, (20, 16), (16, 16), (4, 4))
    bad, good = figure.axes
    assert "704 overwritten" in bad.get_title(loc="left")
    assert "intact" in good.get_title(loc="left")
    image = bad.images[0].get_array()
    assert (image == 2).sum() == 704
    assert image[4, 4] == 1
    assert image[24, 4] == 2, "just below C"
    frame = next(patch for patch in bad.patches if patch.get_linewidth() == 2)
    assert (frame.get_x(), frame.get_y(), frame.get_width(), frame.get_height()) == (3.5, 3.5, 16, 20)
    assert len(bad.lines) == 3 + 2, "edges of 2 x 1 tiles"


def test_canary_wants_c_inside_the_buffer():
    with pytest.raises(ValueError, match=r"\(40, 40\)"):
        ownership.count_canary(buffer_with(1, 1), (40, 40), (4, 4))
