"""Walks over the tiles of jagged groups: the right one, and that no two mistakes give the same log."""

from __future__ import annotations

from gemm_course.exercises.e13_persistent_helion.language import BLOCK_M, BLOCK_N
from gemm_course.exercises.e13_persistent_helion.walks import DEALINGS, NUMBERINGS, groups_of, in_turn

SIZES, N, WORKERS = (3 * BLOCK_M - 2, 0, 9 * BLOCK_M + 1, 2 * BLOCK_M), 3 * BLOCK_N - 3, 7


def test_the_right_walk_goes_down_each_column_and_deals_in_turn():
    first, empty, *_ = groups = groups_of(SIZES, N)
    end = SIZES[0]
    assert first == [(row * BLOCK_M, end, col * BLOCK_N) for col in range(3) for row in range(3)]
    assert empty == []
    dealt = in_turn(groups, WORKERS)
    assert dealt[1][:3] == [first[1], first[8], groups[2][6]]
    assert sum(map(len, dealt)) == 3 * (3 + 10 + 2)


def test_every_mistake_is_another_walk_than_the_right_one_and_than_those_of_another_cause():
    right, causes = in_turn(groups_of(SIZES, N), WORKERS), {}
    walks = [(why, in_turn(numbering(SIZES, N), WORKERS)) for _, why, numbering in NUMBERINGS]
    walks += [(why, dealing(groups_of(SIZES, N), WORKERS)) for _, why, dealing in DEALINGS]
    for why, walk in walks:
        assert walk != right, why
        assert causes.setdefault(str(walk), why) == why
