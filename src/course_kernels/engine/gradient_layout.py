"""How gradients of weights are stored: like the weights, or where the caller wants them."""

from __future__ import annotations

import torch
from torch import Tensor


def is_column_major(matrix: Tensor) -> bool:
    """Whether a matrix's columns are contiguous, and its rows are not. A matrix of one row is stored either way: torch
    gives it the strides (1, 1) as the transpose of a column."""
    down, across = matrix.stride()[-2:]
    return down == 1 and (across > 1 or (across == 1 and matrix.shape[-2] == 1))


def gradient_like(weight: Tensor, main_grad: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Where a weight's gradient (E, M, N) goes: ``main_grad``, or memory of a dtype, stored like the weight."""
    if main_grad is not None:
        return main_grad
    groups, rows, columns = weight.shape
    if is_column_major(weight):
        return torch.empty(groups, columns, rows, dtype=dtype, device=weight.device).mT
    return torch.empty(groups, rows, columns, dtype=dtype, device=weight.device)
