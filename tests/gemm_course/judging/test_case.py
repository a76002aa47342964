"""What came back for an input: an output with its surroundings, and a returned value of a kind."""

from __future__ import annotations

import pytest
import torch

from gemm_course.judging.case import expect_value
from outputs import block, written


def test_a_right_output_has_nothing_around_it():
    found = written((3, 4))
    assert torch.equal(found.values, torch.ones(3, 4))
    assert (found.name, found.outside, found.missing.any().item()) == ("C", 0, False)
    assert not found.around(2).any()


@pytest.mark.parametrize("probed", [False, True], ids=["carried out", "stopped by a probe"])
def test_a_store_beside_it_is_at_its_place(probed):
    found = written((3, 4), [(-1, 0), (2, 5)], probed)
    assert found.outside == (0 if probed else 2), "a store that a probe stopped has changed nothing"
    assert found.around(2).shape == (7, 8)
    assert found.around(2).nonzero().tolist() == [[1, 2], [4, 7]]
    assert found.around(1).nonzero().tolist() == [[0, 1]]


@pytest.mark.parametrize("probed", [False, True], ids=["carried out", "stopped by a probe"])
def test_rows_that_were_stored_a_wrong_stride_apart_are_measured(probed):
    places = [(0, row * 6 + col) for row in (1, 2) for col in range(4)]
    assert written((3, 4), places, probed, unwritten=block([1, 2], range(4))).wrong_pitch() == 6
    assert written((3, 4), places[1:], probed, unwritten=block([1, 2], range(4))).wrong_pitch() is None
    assert written((3, 4)).wrong_pitch() is None
    assert written((1, 4)).wrong_pitch() is None


def test_elements_with_their_canary_are_missing():
    found = written((3, 4), unwritten=block([1], [0, 3]))
    assert found.missing.nonzero().tolist() == [[1, 0], [1, 3]]
    assert found.outside == 0


def test_a_part_has_its_own_elements_and_the_wholes_surroundings():
    found = written((3, 4), [(3, 0)], unwritten=[(1, 2)])
    part = found.part(slice(1, 3), slice(2, 4), "group 1")
    assert (part.name, found.name, part.outside) == ("group 1", "C", 1)
    assert part.missing.tolist() == [[True, False], [False, False]]
    assert [each.shape for each in (part.values, part.counts, part.writers)] == [(2, 2)] * 3
    assert found.values.shape == (3, 4)


@pytest.mark.parametrize(
    ("value", "kind", "wanted", "says"),
    [
        (3, int, None, None),
        (torch.ones(1), torch.Tensor, None, None),
        (None, int, None, "the function returned None: is there a `return`?"),
        ([3], int, None, "the function returned a list, not a int"),
        (3.0, torch.Tensor, "a tensor of ends", "the function returned a float, not a tensor of ends"),
        ({"not": "Yes"}, int, None, "the function returned a Yes, not a int"),
        ({"not": "Yes", "key": 1}, list, None, "the function returned a dict, not a list"),
    ],
)
def test_a_value_of_another_kind_is_named(value, kind, wanted, says):
    assert expect_value(value, kind, wanted) == says
