"""Wrong rows of `local`: a mistake is the one that all of them have, not what one fits by chance."""

from __future__ import annotations

from gemm_course.exercises.e16_the_splits.local_rows import Row, mistakes

EACH, RANKS = 5, 3


def row(rank, ids, got, number=0):
    owners = [e // EACH if 0 <= e < EACH * RANKS else -1 for e in ids]
    want = [e - rank * EACH if owner == rank else -1 for e, owner in zip(ids, owners)]
    return Row(number, rank, 0, got, want, ids, owners)


def named(*rows):
    return next((why(rows[0]) for why, has in mistakes(EACH, RANKS) if all(map(has, rows))), "")


def test_each_mistake_has_its_words():
    assert "carries all of its choices" in named(row(1, [6, 8], [1, -1]))
    assert named(row(1, [6, 12], [1, 2])) == "choice 1 is rank 2's, so rank 1 must not compute it: -1"
    assert named(row(1, [12, 6], [7, 1])) == "choice 0 is rank 2's, so rank 1 must not compute it: -1"
    assert named(row(0, [2, 12], [2, 12])) == "choice 1 is rank 2's, so rank 0 must not compute it: -1"
    assert "rank 1 begins with expert 5" in named(row(1, [12, 6], [-1, 6]))
    assert "this is id % ranks" in named(row(1, [12, 8], [-1, 2]))
    assert named(row(1, [12, 6], [-1, 2])) == "a rank's experts count from 0"
    assert "0 is an expert of this rank, too" in named(row(1, [12, 8], [0, 3]))
    assert "column j belongs to choice j" in named(row(1, [12, 8], [3, -1]))


def test_a_mistake_has_to_fit_all_rows():
    by_chance = row(1, [12, 7], [-1, 1])  # id % ranks, and so is 8 % 3 below, but not 9 % 3
    assert "id % ranks" in named(by_chance)
    assert "id % ranks" not in named(by_chance, row(1, [12, 9], [-1, 2]))


def test_an_id_that_is_nobodys_is_told_first():
    assert row(1, [12, 99, 6], [7, 94, 1]).column == 1
