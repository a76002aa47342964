"""Compare results with float64 products, element by element, before they are timed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["count_wrong"]


def count_wrong(results: Iterable[Tensor], exact: Iterable[Tensor], unit: float) -> list[int]:
    """Elements of each group that are off by more than `unit` × (their magnitude + the group's root mean square).

    Operands are random normal, so an element that was not computed is off by far more. NaN is always wrong.

    Args:
        results, exact: of each group, of the same shapes. An iterator needs memory for one at a time.
        unit: one unit in the last place of the result's dtype covers the rounding, and sums in another order.
    """
    wrong = []
    for result, right in zip(results, exact, strict=True):
        rms = right.square().mean().sqrt() if right.numel() else 0.0
        within = (result.to(right.dtype) - right).abs() <= (right.abs() + rms) * unit
        wrong.append((~within).sum())
    return torch.stack(wrong).tolist() if wrong else []
