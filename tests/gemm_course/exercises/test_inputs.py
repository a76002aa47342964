"""What several exercises draw: whole numbers, bounds of groups."""

from __future__ import annotations

import random

import pytest
import torch

from gemm_course.exercises import inputs


def test_whole_numbers_are_exact_and_of_the_seed():
    drawn = inputs.whole_numbers(random.Random(5), 40, 30)
    assert (drawn.dtype, drawn.shape) == (torch.float16, (40, 30))
    assert set(drawn.unique().tolist()) == {1, 2, 3}
    assert torch.equal(drawn, inputs.whole_numbers(random.Random(5), 40, 30))
    rng = random.Random(5)
    first, second = (inputs.whole_numbers(rng, 40, 30) for _ in range(2))
    assert not torch.equal(first, second)
    assert set(inputs.whole_numbers(rng, 99, low=-1, high=0).tolist()) == {-1, 0}
    with pytest.raises(ValueError, match="low must not be above high, got 3 and 2"):
        inputs.whole_numbers(rng, 4, low=3, high=2)


def test_bounds_begin_at_0_and_an_empty_group_has_none_of_the_rows():
    assert inputs.bounds_of([3, 3, 8]) == [(0, 3), (3, 3), (3, 8)]
    assert inputs.bounds_of([]) == []
