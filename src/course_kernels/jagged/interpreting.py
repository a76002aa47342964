"""bfloat16 in Triton's interpreter, which multiplies its bit patterns as if they were integers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["widened_on_cpu"]


def widened_on_cpu(multiply: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorator of a launch: float32 copies stand in for bfloat16 operands on the CPU.

    Args:
        multiply: takes operands among its positional arguments, and returns a product of their promoted dtype.
    """

    @functools.wraps(multiply)
    def wrapper(*arguments, **options) -> Tensor:
        operands = [each for each in arguments if isinstance(each, Tensor) and each.is_floating_point()]
        if operands[0].is_cuda or all(each.dtype != torch.bfloat16 for each in operands):
            return multiply(*arguments, **options)
        dtype = functools.reduce(torch.promote_types, (each.dtype for each in operands))
        wide = [each.float() if any(each is operand for operand in operands) else each for each in arguments]
        return multiply(*wide, **options).to(dtype)

    return wrapper
