"""Which tokens a wrong sum is over, and what is said about it."""

from __future__ import annotations

import random
import re

import pytest
import torch

from gemm_course.exercises import sum_mistakes
from outputs import block, written

PARTS = torch.randint(100, 999, (60, 3, 4), generator=torch.Generator().manual_seed(3)).double()
BOUNDS = [(0, 18), (18, 18), (18, 57), (57, 58), (58, 60)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("found", [(0, 1), (0, 60), (18, 57), (41, 42), (59, 60)])
def test_a_sum_has_its_range(found, dtype):
    assert sum_mistakes.range_of_sum(PARTS[slice(*found)].sum(0).to(dtype), PARTS) == found


def test_zero_is_an_empty_range_and_anything_else_none():
    assert sum_mistakes.range_of_sum(torch.zeros(3, 4), PARTS) == (0, 0)
    assert sum_mistakes.range_of_sum(torch.full((3, 4), 0.5), PARTS) is None
    assert sum_mistakes.range_of_sum(torch.full((3, 4), torch.nan), PARTS) is None
    assert sum_mistakes.range_of_sum(torch.zeros(3, 4), PARTS[:0]) == (0, 0)


@pytest.mark.parametrize(
    ("found", "last_block", "says"),
    [
        ((0, 0), False, "this is 0, and group 2 has tokens 18 to 56: does the loop run"),
        ((0, 57), False, "the sum over tokens 0 to 56: is `start` used"),
        ((0, 39), False, "the first of all. Is `start` added"),
        ((16, 57), False, "begins at a multiple of 16"),
        ((19, 57), False, "one is missing at the beginning"),
        ((50, 57), False, "only the last block"),
        ((18, 34), False, "only the first block"),
        ((57, 58), False, "the sum over token 57 alone. That is group 3"),
        ((20, 50), False, "group 2 has tokens 18 to 56, and this is the sum over tokens 20 to 49$"),
        ((18, 58), True, "one too many, as `<=`"),
        ((18, 60), True, "where the last group ends, not where this one does"),
        ((18, 56), True, "one is missing at the end"),
        ((18, 50), True, "the last block is left out; 7 of its 16 tokens"),
        ((18, 39), True, "39 is the group's number of tokens"),
        ((18, 59), True, "has to compare with `end`"),
    ],
)
def test_a_range_has_its_mistake(found, last_block, says):
    tail, why = sum_mistakes.explain_range(found, BOUNDS, 2, 16)
    assert tail == last_block
    assert re.search(says, why), why


def test_a_block_that_is_not_masked_is_told_from_all_groups():
    tail, why = sum_mistakes.explain_range((18, 66), [*BOUNDS, (60, 80)], 2, 16)
    assert tail
    assert "the whole last block is summed, with 9 of the next tokens" in why


def test_an_empty_group_is_zero_or_has_a_reason():
    def said(values, unwritten=(), in_loop=False):
        result = written((3, 4), unwritten=unwritten)
        if not unwritten:
            result.values[:] = values
        return sum_mistakes.explain_empty(result, PARTS, 18, 16, "group 1", in_loop)

    assert said(0.0) == ""
    assert "zeros have to be stored" in said(0.0, block([0], range(4)))
    assert "the loop never runs" in said(0.0, block([0], range(4)), in_loop=True)
    assert said(torch.nan) == "group 1 is empty, and C is NaN, not zero"
    assert said(0.5) == "group 1 is empty, and C is not zero"
    assert said(PARTS[18:34].sum(0)).endswith(
        "tokens 18 to 33: is a block added before the loop checks whether there is one?"
    )
    for other in (slice(2, 34), slice(18, 30)):
        tokens = f"tokens {other.start} to {other.stop - 1}"
        assert said(PARTS[other].sum(0)).endswith(f"is not zero but the sum over {tokens}")


def test_a_stored_nan_is_told_from_an_element_that_was_never_stored():
    result = written((2, 3), unwritten=block([0], range(3)))
    assert not sum_mistakes.held_before(result).any()
    result.counts[0, 1] = 1
    result.values[1, 2] = torch.nan
    result.missing[1, 2] = False
    assert sum_mistakes.held_before(result).tolist() == [[False, True, False], [False, False, True]]


def test_drawn_groups_are_of_every_kind():
    for seed in range(30):
        sizes = sum_mistakes.group_sizes(random.Random(seed), 16)
        assert sizes[0] == sizes[-1] == 0 in sizes[1:-1]
        assert {1, 32} <= set(sizes)
        longest = sizes.index(max(sizes))
        assert sum(sizes[:longest]) > 16
        assert sum(sizes[:longest]) % 16
        assert 1 < sizes[longest] % 16 < 15


def test_groups_that_begin_later_and_are_longer_tell_more():
    assert sum_mistakes.most_telling_first([0, 2, 3, 4], BOUNDS) == [2, 4, 3, 0]
