"""Compare results with float64 products, element by element, before they are timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from course_kernels.engine.product import Gated, GatedBackward, Product
from course_kernels.engine.scaling import BLOCK, Blocks
from course_kernels.engine.torch_activations import activate, activation_gradient

__all__ = ["count_unlike", "count_wrong", "exact_products"]

_AT_ONCE = 2**26  # elements that are compared at a time: a few GB of float32


def exact_products(product: Product, sizes: Sequence[int]) -> Iterator[Tensor]:
    """The float64 results of each group, in modes "m" and "k"; an activation of them in float32.

    Args:
        product: its factors of blocks, if any, are for 1x128 of A and 128x128 of B. Lines may be gathered.
        sizes: rows of each group, or its depth.
    """
    a, b, (scale_a, scale_b) = product.a, product.b, (product.scaling.a, product.scaling.b)
    blocks = isinstance(product.scaling, Blocks)
    for g, (start, end) in enumerate(itertools.pairwise(itertools.accumulate(sizes, initial=0))):
        lines = slice(start, end) if product.index is None else product.index[start:end].long()
        if b.dim() == 2:
            gathered = None if product.index is None else product.rows.operand
            of_a, of_b = (lines if gathered in (None, name) else slice(start, end) for name in "ab")
            yield a[:, of_a].double() @ b[of_b].double()
            continue
        rows, weight = a[lines].double(), b[g].double()
        if blocks:
            depth, columns = weight.shape
            rows *= scale_a[start:end].repeat_interleave(BLOCK, 1)[:, :depth]
            weight *= scale_b[g].repeat_interleave(BLOCK, 0)[:depth].repeat_interleave(BLOCK, 1)[:, :columns]
        result = rows @ weight
        if scale_a is not None and not blocks:
            result *= scale_a[start:end, None].double() * scale_b[g].double()
        yield _stored(product, result, slice(start, end))


def _stored(product: Product, sums: Tensor, rows: slice) -> Tensor:
    """The result of a product's epilogue for some rows, from their sums."""
    epilogue = product.epilogue
    if isinstance(epilogue, Gated):
        return activate(sums, epilogue.activation, epilogue.interleaved)
    if isinstance(epilogue, GatedBackward):
        of_rows = sums * epilogue.weights[rows, None]
        return activation_gradient(of_rows, epilogue.pre[rows], epilogue.activation, epilogue.interleaved)
    return sums


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


def count_unlike(result: Tensor, other: Tensor, unit: float) -> int:
    """Elements of a result that differ from another kernel's by more than `unit` × (their magnitude + the row's root
    mean square). NaN is always wrong.

    A few launches for the whole result, where `count_wrong` takes a dozen a group.

    Args:
        result, other: of one shape, at least two dimensions.
        unit: twice that of `count_wrong`, since both results are rounded.
    """
    if result.shape != other.shape:
        raise ValueError(f"results of one shape are compared, got {tuple(result.shape)} and {tuple(other.shape)}")
    rows = max(1, _AT_ONCE // max(1, result.shape[-1]))
    pieces = (each.flatten(0, -2).split(rows) for each in (result, other))
    wrong = []
    for found, right in zip(*pieces, strict=True):
        found, right = found.float(), right.float()
        bound = (right.abs() + right.square().mean(-1, keepdim=True).sqrt()) * unit
        wrong.append((~((found - right).abs() <= bound)).sum())
    return int(torch.stack(wrong).sum())
