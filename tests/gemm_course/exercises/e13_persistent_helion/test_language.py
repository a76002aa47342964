"""The stand-in for Helion's language counts as Helion does, notes skipped turns, and ends endless loops."""

from __future__ import annotations

import pytest
import torch

from gemm_course.exercises.e13_persistent_helion import language
from gemm_course.exercises.e13_persistent_helion.language import COUNT_TILE_ROWS, Language


def test_a_turn_without_a_tile_is_noted_for_its_worker():
    hl = Language()
    for worker in hl.grid(2):
        for _ in hl.grid(torch.tensor(3)):  # groups: no turns of their own
            for tile in hl.grid(worker, 5, 2):
                if tile != 3:
                    hl.compute(torch.tensor(tile), 7, worker)
    assert hl.skipped == {1: 3}
    assert hl.tiles == [[0, 0, 7, 0], [0, 2, 7, 0], [0, 4, 7, 0]] * 3 + [[1, 1, 7, 1]] * 3
    hl.start()
    assert (hl.tiles, hl.skipped) == ([], {})


def test_a_group_that_is_passed_over_is_nothing_looked_at():
    hl = Language()
    for worker in hl.grid(2):
        for g in hl.grid(3):
            if g != 1:
                for _ in hl.grid(worker, 2, 2):
                    hl.compute(0, 1, 0)
    assert hl.skipped == {}


def test_an_empty_loop_is_nothing_looked_at():
    hl = Language()
    for worker in hl.grid(3):
        for _ in hl.grid(worker, 0, 3):
            raise AssertionError
    assert hl.skipped == {}


def test_a_loop_that_is_left_is_closed():
    hl = Language()
    for _ in hl.grid(2):
        for tile in hl.grid(9):
            if tile == 1:
                break
            hl.compute(0, 1, 0)
    assert hl.skipped == {0: 1, 1: 1}
    assert [line[0] for line in hl.tiles] == [0, 1]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda hl: list(hl.grid(0, 4, 0)), ValueError, "at least 1, got 0"),
        (lambda hl: list(hl.grid(2.5)), TypeError, "a float: / divides"),
        (lambda hl: list(hl.grid(10**9)), RuntimeError, "20000 turns"),
        (lambda hl: hl.compute(0, 1, 0), RuntimeError, r"outside of hl\.grid"),
        (lambda hl: hl.zeros, AttributeError, r"knows no hl\.zeros"),
    ],
)
def test_mistakes_are_named(call, error, says):
    with pytest.raises(error, match=says):
        call(Language())


def test_numbers_that_are_none_come_back_as_names():
    hl = Language()
    for _ in hl.grid(1):
        hl.compute(torch.tensor(1.5), None, torch.zeros(2))
    assert hl.tiles == [[0, "a float", "a NoneType", "a Tensor"]]


def test_tile_rows_are_counted_and_repeat():
    ends, tile_rows = COUNT_TILE_ROWS(torch.tensor([0, 0, 17, 17, 49]), 8, 16)
    assert ends.tolist() == [0, 17, 17, 49, 49, 49, 49, 49]
    assert tile_rows.tolist() == [0, 2, 2, 4, 4, 4, 4, 4]
    assert language.BLOCK_M != language.BLOCK_N
