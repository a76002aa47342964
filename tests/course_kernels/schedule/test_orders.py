"""Tile orders and who walks them, against closed forms and a table worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_kernels.schedule import (
    problem_starts,
    tile_counts,
    tiles,
    walk,
    xcd_tile,
)

problem = st.tuples(st.integers(0, 90), st.integers(0, 90), st.integers(0, 200))
problem_lists = st.lists(problem, max_size=6)
blocks = st.tuples(st.sampled_from([16, 32]), st.sampled_from([16, 32]), st.sampled_from([16, 64]))
short = settings(max_examples=60, deadline=None)


# --- tiles ---


def test_tile_counts_rounds_up_and_keeps_k_of_zero():
    assert tile_counts([(128, 256, 64), (129, 256, 64), (0, 5, 7), (5, 0, 7), (5, 5, 0)], 128, 256) == [
        1,
        2,
        0,
        0,
        1,
    ]
    assert tile_counts([], 16, 16) == []


def test_tiles_row_major_with_boundary_extents():
    found = tiles([(3, 0, 9), (3, 5, 7)], 2, 2)
    assert [(t.problem, t.m, t.n, t.rows, t.cols, t.k, t.index) for t in found] == [
        (1, 0, 0, 2, 2, 7, 0),
        (1, 0, 1, 2, 2, 7, 1),
        (1, 0, 2, 2, 1, 7, 2),
        (1, 1, 0, 1, 2, 7, 3),
        (1, 1, 1, 1, 2, 7, 4),
        (1, 1, 2, 1, 1, 7, 5),
    ]


def test_strips_are_walked_by_column_and_the_last_one_is_short():
    # Five tile rows in strips of two: two full strips, then one of a single row.
    found = tiles([(5, 3, 1)], 1, 1, group_m=2)
    assert [(t.m, t.n) for t in found] == [
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2),
        (2, 0), (3, 0), (2, 1), (3, 1), (2, 2), (3, 2),
        (4, 0), (4, 1), (4, 2),
    ]  # fmt: skip


def test_strip_higher_than_the_problem_is_column_major():
    assert [(t.m, t.n) for t in tiles([(2, 3, 1)], 1, 1, group_m=8)] == [
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2),
    ]  # fmt: skip


@short
@given(problem_lists, blocks, st.integers(1, 9))
def test_tiles_cover_every_output_element_once(problems, block, group_m):
    found = tiles(problems, block[0], block[1], group_m)
    assert [t.index for t in found] == list(range(sum(tile_counts(problems, block[0], block[1]))))
    assert [t.problem for t in found] == sorted(t.problem for t in found)
    for position, (m, n, k) in enumerate(problems):
        own = [t for t in found if t.problem == position]
        assert len({(t.m, t.n) for t in own}) == len(own)
        assert sum(t.rows * t.cols for t in own) == m * n
        for t in own:
            assert 0 <= t.m * block[0]
            assert t.m * block[0] + t.rows <= m
            assert 1 <= t.rows <= block[0]
            assert 0 <= t.n * block[1]
            assert t.n * block[1] + t.cols <= n
            assert 1 <= t.cols <= block[1]
            assert t.k == k


# --- walk ---


def test_three_problems_on_four_programs_by_hand():
    # 2 x 2, 1 x 3 and 2 x 1 tiles of 16 x 16: nine tiles, numbered 0-3, 4-6 and 7-8.
    problems = [(32, 32, 16), (16, 48, 16), (20, 10, 16)]
    by_hand = [
        [(0, 0, 0), (1, 0, 0), (2, 1, 0)],
        [(0, 0, 1), (1, 0, 1)],
        [(0, 1, 0), (1, 0, 2)],
        [(0, 1, 1), (2, 0, 0)],
    ]
    dealt = walk(problems, "round_robin", 4, (16, 16))
    assert [[(t.problem, t.m, t.n) for t in line] for line in dealt] == by_hand
    assert [[t.index for t in line] for line in walk(problems, "chunks", 4, (16, 16))] == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [],
    ]  # fmt: skip
    swizzled = walk(problems, "swizzled", 4, (16, 16), group_m=2)
    assert [(t.problem, t.m, t.n) for t in swizzled[1]] == [(0, 1, 0), (1, 0, 1)]


def test_group_m_applies_to_every_order():
    problems = [(64, 64, 16)]
    assert walk(problems, "swizzled", 3, (16, 16), 2) == walk(problems, "round_robin", 3, (16, 16), 2)
    assert walk(problems, "swizzled", 3, (16, 16), 1) == walk(problems, "round_robin", 3, (16, 16))
    assert walk(problems, "swizzled", 3, (16, 16)) == walk(problems, "swizzled", 3, (16, 16), 8)
    assert walk(problems, "swizzled", 3, (16, 16)) != walk(problems, "round_robin", 3, (16, 16))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tiles([(1, 2)], 16, 16), TypeError, r"problems\[0\] is \(1, 2\); want three integers"),
        (lambda: tiles([(1, 2, 3), 5], 16, 16), TypeError, r"problems\[1\] is 5"),
        (lambda: tiles([(1, 2, 3.0)], 16, 16), TypeError, r"problems\[0\]"),
        (lambda: tile_counts([(1, 2, 3), (4, -1, 2)], 16, 16), ValueError, r"problems\[1\] is \(4, -1, 2\)"),
        (lambda: tile_counts([], 0, 16), ValueError, "block_m is 0; want at least 1"),
        (lambda: tile_counts([], 16, 1.5), TypeError, "block_n is 1.5; want a positive integer"),
        (lambda: tiles([], 16, 16, 0), ValueError, "group_m is 0"),
        (lambda: walk([], "round_robin", 0), ValueError, "programs is 0"),
        (lambda: walk([], "spiral"), ValueError, "order is 'spiral'; want one of 'round_robin', 'chunks'"),
        (lambda: walk([], "dynamic"), ValueError, r"order is 'dynamic'.*use simulate\(\)"),
        (lambda: walk([], "chunks", 4, (16,)), TypeError, r"block is \(16,\)"),
        (lambda: walk([], "chunks", 4, 16), TypeError, "block is 16"),
    ],
)
def test_bad_input_says_what_it_wants(call, error, message):
    with pytest.raises(error, match=message):
        call()


# --- chiplets ---


@short
@given(st.integers(1, 700), st.integers(1, 400), st.integers(1, 12))
def test_every_tile_has_one_place_whatever_divides_what(count, programs, num_xcds):
    places = [xcd_tile(tile, count, programs, num_xcds) for tile in range(count)]
    assert sorted(places) == list(range(count))
    for first in range(0, count, programs):  # a round stays a round
        ends = range(first, min(first + programs, count))
        assert sorted(places[first : first + programs]) == list(ends)
        # A chiplet's tiles of a round follow each other, and the chiplets' shares differ by one at most.
        shares = [places[first : first + programs][xcd::num_xcds] for xcd in range(num_xcds)]
        assert [tile for share in shares for tile in share] == list(ends)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_chiplet_changes_nothing_and_eight_by_hand():
    assert [xcd_tile(tile, 10, 4, 1) for tile in range(10)] == list(range(10))
    # Programs 0, 2, 4 are on the first of two chiplets: they get tiles 0, 1, 2; the last round has two tiles.
    assert [xcd_tile(tile, 7, 5, 2) for tile in range(7)] == [0, 3, 1, 4, 2, 5, 6]


# --- problem_starts ---


def test_problem_starts_are_arrivals_at_a_problem():
    problems = [(64, 64, 64)] * 2 + [(32, 32, 64)]
    starts = {
        order: [problem_starts(own) for own in walk(problems, order, 4, (32, 32))]
        for order in ("round_robin", "chunks")
    }
    assert starts["round_robin"] == [[0, 1, 2], [0, 1], [0, 1], [0, 1]]
    assert [len(own) for own in starts["chunks"]] == [1, 2, 2, 0]
