"""A weight's gradient is stored like the weight, or goes where the caller wants it."""

from __future__ import annotations

import pytest
import torch

from course_kernels.engine.gradient_layout import gradient_like, is_column_major

WEIGHT = torch.zeros(3, 4, 5)


@pytest.mark.parametrize(
    ("matrix", "columns_first"),
    [
        (torch.zeros(4, 5), False), (torch.zeros(5, 4).mT, True), (torch.zeros(2, 5, 4).mT, True),
        (torch.zeros(5, 1).mT, True), (torch.zeros(1, 5), False), (torch.zeros(4, 10)[:, ::2], False),
        (torch.zeros(1, 1), True), (torch.zeros(8, 5).mT[:, ::2], True), (torch.zeros(4, 1), False),
    ],
)  # fmt: skip
def test_the_contiguous_extent_is_found(matrix, columns_first):
    assert is_column_major(matrix) == columns_first


@pytest.mark.parametrize("weight", [WEIGHT, torch.zeros(3, 5, 4).mT, torch.zeros(3, 5, 8).mT[:, ::2]])
def test_it_is_stored_like_the_weight(weight):
    found = gradient_like(weight, None, torch.float32)
    assert found.shape == weight.shape
    assert found.dtype == torch.float32
    assert is_column_major(found) == is_column_major(weight)
    assert (found.mT if is_column_major(found) else found).is_contiguous()


def test_it_goes_where_the_caller_wants_it():
    main = torch.zeros(3, 4, 5)
    assert gradient_like(WEIGHT, main, torch.bfloat16) is main
