"""The stand-in for Helion's language counts as Helion does, notes skipped turns, and ends endless loops."""

from __future__ import annotations

import copy

import numpy as np
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
        (lambda hl: language.Given().zeros, AttributeError, r"knows no hl\.zeros"),
    ],
)
def test_mistakes_are_named(call, error, says):
    with pytest.raises(error, match=says):
        call(Language())


def test_what_an_answer_has_leads_to_no_note_of_its_walk():
    for each in (language.Given(), language.Given().grid, language.counting, COUNT_TILE_ROWS, language.COMPUTE_TILE):
        memo = {}
        copy.deepcopy(each, memo)
        assert not any(isinstance(kept, Language) for kept in [*memo.values(), *memo.get(id(memo), [])])


def test_numbers_that_are_none_come_back_as_names():
    hl = Language()
    for _ in hl.grid(1):
        hl.compute(torch.tensor(1.5), None, torch.zeros(2))
    assert hl.tiles == [[0, "a float", "a NoneType", "a Tensor"]]


def test_operands_in_another_order_and_other_values_are_named():
    a, b = (language.operand(name, 1) for name in ("A_packed", "B"))
    with pytest.raises(TypeError, match=r"was given B, a Tensor, a int$"):
        language.COMPUTE_TILE(b, torch.zeros(1), 3, 0, 1, 0, 16, 8)
    with pytest.raises(TypeError, match=r"was given A_packed, B, a Tensor$"):
        language.COMPUTE_TILE(a, b, torch.zeros(1), 0, 1, 0, 16, 8)


def test_tile_rows_are_counted_and_repeat():
    ends, tile_rows = COUNT_TILE_ROWS(torch.tensor([0, 0, 17, 17, 49]), 8, 16)
    ends, tile_rows = (each.as_subclass(torch.Tensor) for each in (ends, tile_rows))
    assert ends.tolist() == [0, 17, 17, 49, 49, 49, 49, 49]
    assert tile_rows.tolist() == [0, 2, 2, 4, 4, 4, 4, 4]
    assert language.BLOCK_M != language.BLOCK_N


def as_in_a_kernel():
    return torch.tensor([2, 5]).as_subclass(language.Values)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda values: int(torch.amax(values)), "no Python number"),
        (lambda values: torch.amax(values).item(), "no Python number"),
        (lambda values: range(torch.amax(values * 2)), "no Python number"),
        (lambda values: [*values], "no Python number"),
        (lambda values: bool(values[None, :].sum() > 3), "no Python number"),
        (lambda values: values.tolist(), "no Python number"),
        (lambda values: values.numpy(), "no Python number"),
        (lambda values: np.asarray(values), "no Python number"),
        (lambda values: complex(torch.amax(values)), "no Python number"),
        (lambda values: (values + 1)[-1], "by an index"),
        (lambda values: values[0], "by an index"),
    ],
)
def test_what_helion_refuses_is_refused(ask, says):
    with pytest.raises(TypeError, match=says):
        ask(as_in_a_kernel())


def test_what_helion_takes_is_taken():
    values = as_in_a_kernel()
    assert torch.equal(values[None, :].as_subclass(torch.Tensor), torch.tensor([[2, 5]]))
    assert list(Language().grid(torch.amin(values))) == [0, 1]
    language.LANGUAGE.start()
    assert list(language.counting(1, torch.amax(values), 2)) == [1, 3]
    assert language.counting(3) == range(3)
