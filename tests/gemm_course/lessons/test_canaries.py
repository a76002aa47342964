"""Elements and rows of a buffer are sorted by what a kernel did to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gemm_course.lessons import canaries
from gemm_course.lessons.canaries import INCORRECT, MISSING, OUTSIDE, RIGHT, UNTOUCHED

CANARY = -999.0


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


def buffer_with(rows, cols):
    buffer = torch.full((40, 40), float("nan"), dtype=torch.float16)
    buffer[4 : 4 + rows, 4 : 4 + cols] = 1
    return buffer


def test_canary_counts_what_was_written_where():
    count = canaries.count_canary
    assert count(buffer_with(20, 16), (20, 16), (4, 4)) == dict(intact=1280, written=320, overwritten=0, missing=0)
    assert count(buffer_with(32, 32), (20, 16), (4, 4)) == dict(intact=576, written=320, overwritten=704, missing=0)
    assert count(buffer_with(20, 10), (20, 16), (4, 4)) == dict(intact=1280, written=200, overwritten=0, missing=120)


def test_canary_wants_c_inside_the_buffer():
    with pytest.raises(ValueError, match=r"\(40, 40\)"):
        canaries.count_canary(buffer_with(1, 1), (40, 40), (4, 4))


SIZES, MAX_M = [3, 0, 5, 1], 6


@pytest.fixture
def result():
    """A result and what it should be: group 0 with a wrong row and a missing one, group 1 written although empty."""
    want = torch.arange(4 * MAX_M * 2).view(4, MAX_M, 2).float()
    result = torch.full_like(want, -7.0)
    for g, size in enumerate(SIZES):
        result[g, :size] = want[g, :size]
    result[0, 1, 1] += 1
    result[0, 2] = -7.0
    result[1, 0, 0] = 0.0
    return result, want


def test_a_row_has_the_worst_state_of_its_elements(result):
    states = canaries.row_states(*result, SIZES, -7.0)
    assert states[0].tolist() == [RIGHT, INCORRECT, MISSING, UNTOUCHED, UNTOUCHED, UNTOUCHED]
    assert states[1].tolist() == [OUTSIDE] + [UNTOUCHED] * 5
    assert states[2].tolist() == [RIGHT] * 5 + [UNTOUCHED]
    assert np.bincount(states.ravel()).sum() == 24


@pytest.mark.parametrize("matrix", [torch.tensor([[1, 2]], dtype=torch.bfloat16, requires_grad=True), [[1, 2]]])
def test_numbers_of_a_tensor_or_a_list(matrix):
    found = canaries.numbers(matrix)
    assert (found.dtype, found.tolist()) == (np.float64, [[1, 2]])
