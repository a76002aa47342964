"""The overview draws the tokens, groups and tiles that it was given."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from matplotlib.colors import to_hex

from course_kernels import testing
from gemm_course.figures.f00_overview import overview
from gemm_course.figures.style import color_of


def patches(figure, gid):
    return [patch for patch in figure.axes[0].patches if (patch.get_gid() or "") == gid]


def colors(found):
    return Counter(to_hex(patch.get_facecolor()).upper() for patch in found)


def test_tokens_keep_their_order_and_have_their_experts_colours():
    ids = [2, 0, 0, 1, 2, 2]
    figure = overview(ids, experts=3)
    drawn = [patches(figure, f"token{i}")[0] for i in range(len(ids))]
    assert [to_hex(patch.get_facecolor()).upper() for patch in drawn] == [color_of(g) for g in ids]
    edges = [patch.get_y() for patch in drawn]
    assert edges == sorted(edges, reverse=True)


def test_groups_are_as_high_as_they_have_tokens():
    figure = overview(testing.route("zipf", 64, seed=1))
    sizes = testing.routed_sizes("zipf", 64, seed=1)
    heights = [patches(figure, f"A{g}")[0].get_height() for g in range(8)]
    assert [h / heights[0] * sizes[0] for h in heights] == pytest.approx(sizes)
    assert [text.get_text() for text in figure.axes[0].texts if " token" in text.get_text()] == [
        f"{size} token" + ("" if size == 1 else "s") for size in sizes
    ]


def test_every_tile_is_computed_once_by_some_processor():
    figure = overview(testing.route("zipf", 64, seed=1), programs=7)
    outputs = [colors(patches(figure, f"C{g}")) for g in range(8)]
    lanes = [patches(figure, f"SM{p}") for p in range(7)]
    assert sum(map(colors, lanes), Counter()) == sum(outputs, Counter())
    lengths = [len(lane) for lane in lanes]
    assert max(lengths) - min(lengths) <= 1
    assert any(f"{sum(lengths)} tiles" in text.get_text() for text in figure.axes[0].texts)


@pytest.mark.parametrize("height", [5.0, 3.0])
@pytest.mark.parametrize("router", testing.ROUTERS)
def test_nothing_leaves_the_figure_and_groups_do_not_overlap(router, height):
    figure = overview(testing.route(router, 64), height=height)
    largest = max(patches(figure, f"A{g}")[0].get_height() for g in range(8))
    assert largest > height / 10  # room is left for the groups
    ax = figure.axes[0]
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    for patch in ax.patches:
        box = patch.get_path().get_extents(patch.get_patch_transform())
        assert box.x0 >= left
        assert box.x1 <= right
        assert box.y0 >= low
        assert box.y1 <= high
    groups = [patches(figure, f"A{g}")[0] for g in range(8)]
    for upper, lower in itertools.pairwise(groups):
        assert upper.get_y() >= lower.get_y() + lower.get_height()


def test_an_expert_without_tokens_has_no_tile():
    figure = overview([0, 0, 2], experts=3)
    assert patches(figure, "C1") == []
    assert patches(figure, "C2") != []


def test_an_output_has_as_many_tiles_side_by_side_whatever_the_router_did():
    """N is a property of the weights: only the tile rows depend on the tokens."""
    for expert_of in ([0], [0] * 5, [0] * 40, [0, 1] * 32, [1] * 63 + [0]):
        figure = overview(expert_of, experts=2, block=4)
        for g in range(2):
            left = {round(patch.get_x(), 6) for patch in patches(figure, f"C{g}")}
            rows_of_tiles = -(-expert_of.count(g) // 4)
            assert len(left) == (6 if rows_of_tiles else 0)
            assert len(patches(figure, f"C{g}")) == 6 * rows_of_tiles


def test_a_few_tokens_are_not_drawn_higher_than_wide():
    (group,) = patches(overview([0, 0], experts=1), "A0")
    assert group.get_height() < group.get_width()
