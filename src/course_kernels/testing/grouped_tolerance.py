"""How far the products of groups may be from the oracle: ``tolerance`` for every mode of grouped_mm.

``extras`` are the ``bias``, ``scale_a`` and ``scale_b`` of `reference.grouped_mm`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from course_kernels.dtypes import FP8
from course_kernels.testing import reference
from course_kernels.testing.tolerance import (
    TOLERANCES,
    check_result,
    check_sums,
    compare,
    compare_exact,
    lookup,
    relative_error,
    rounded_bound,
    whole_numbers,
)

__all__ = [
    "accumulated_error_bound", "assert_grouped_close", "assert_grouped_exact", "block_scaled_error_bound",
    "grouped_error_bound", "sums_error_bound",
]  # fmt: skip

_FLOAT32_STEP = TOLERANCES[torch.float32, "ieee"]  # of an addition, or a multiplication
_SCALED_DEPTH, _LEAST_BLOCK = 128, 16  # of a block with factors; of what a kernel multiplies at a time


def grouped_error_bound(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None,
    out_dtype: torch.dtype,
    *,
    accumulation: str | None = None,
    **extras: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`error_bound` for the products of groups, in any mode of `reference.grouped_mm`, whose arguments it takes.

    Returns:
        Two float64 tensors of the result's shape: the value, and the largest absolute error. Both are 0 in the tail.

    Raises:
        ValueError: as `error_bound` or `reference.grouped_mm`.
    """
    bias = extras.get("bias")
    if mat_a.dtype != mat_b.dtype:
        raise ValueError(f"mat_a is {mat_a.dtype}, mat_b is {mat_b.dtype}: they must be equal")
    extras = {name: t.detach() for name, t in extras.items() if t is not None}
    exact = reference.grouped_mm(mat_a, mat_b, offs, **extras).detach()
    widths = {name: t.abs() for name, t in extras.items() if name != "bias"}
    wide = [t.detach().to(torch.float64).abs() for t in (mat_a, mat_b)]
    products = reference.grouped_mm(*wide, offs, **widths)
    # The steps of each sum: K, or each group's own in mode "k".
    k = mat_a.shape[-1]
    steps = torch.full((1, 1, 1) if exact.ndim == 3 else (1, 1), float(k), dtype=torch.float64, device=exact.device)
    if mat_a.ndim == mat_b.ndim == 2:
        steps = torch.diff(offs.detach(), prepend=offs.new_zeros(1))[:, None, None].to(torch.float64)
        k = int(steps.max()) if steps.numel() else 0
    relative = relative_error(lookup(mat_a.dtype, accumulation, mat_a.is_cuda), steps, k)
    magnitude = products if bias is None else products + _bias_rows(exact, offs, bias.detach().abs().to(exact))
    # Each scale and the bias is one more float32 operation on what came before.
    epilogue = len(extras) * 2.0**-23
    error = relative * products * (1 + epilogue) + epilogue * magnitude
    return exact, rounded_bound(exact, error, magnitude, k, out_dtype)


def block_scaled_error_bound(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor | None, out_dtype: torch.dtype, *, accumulation: str | None = None
) -> tuple[Tensor, Tensor]:
    """`grouped_error_bound` for float8 products whose blocks of 128 along K have factors.

    Args:
        mat_a, mat_b: the operands times their factors, float64, finite, as `reference.dequantize` gives them.
        offs, out_dtype, accumulation: as for `grouped_error_bound`.

    Raises:
        ValueError: as `error_bound` or `reference.grouped_mm`.

    Notes:
        The tensor cores add the products of up to 128 of K. Each such sum is multiplied with the product of two factors
        and added to a float32 sum, in steps of 16 of K or more.
    """
    exact = reference.grouped_mm(mat_a, mat_b, offs)
    magnitude = reference.grouped_mm(mat_a.abs(), mat_b.abs(), offs)
    k = mat_a.shape[-1]
    deep = min(k, _SCALED_DEPTH)
    inside = relative_error(lookup(FP8, accumulation, mat_a.is_cuda), deep, deep)
    steps = -(-k // _LEAST_BLOCK) + 1
    outside = relative_error(_FLOAT32_STEP, steps, steps)
    return exact, rounded_bound(exact, (inside + outside + inside * outside) * magnitude, magnitude, k, out_dtype)


def accumulated_error_bound(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor, held: Tensor, *, accumulation: str | None = None
) -> tuple[Tensor, Tensor]:
    """`grouped_error_bound` for products of mode "k" that were added in float32 to what a result held.

    Args:
        held: (G, M, N), finite, of the result's dtype.
    """
    product, error = grouped_error_bound(mat_a, mat_b, offs, torch.float32, accumulation=accumulation)
    wide = held.to(product)
    exact = product + wide
    error = error + (exact.abs() + error) * _FLOAT32_STEP.unit
    return exact, rounded_bound(exact, error, product.abs() + wide.abs(), mat_b.shape[0], held.dtype)


def sums_error_bound(matrix: Tensor, offs: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The sums of each group's rows, and how far from them float32 sums in any order may be.

    Args:
        matrix: (total, N), finite within the groups.
        offs: (G,) ends.
        held: (G, N) that the sums are added to.

    Returns:
        Two float64 tensors (G, N): the value, and the largest absolute error. Without held, a group without rows has
        zeros.
    """
    bounds = [0, *offs.tolist()]
    exact = matrix.new_zeros(offs.shape[0], matrix.shape[1], dtype=torch.float64)
    magnitude = torch.zeros_like(exact)
    for g, (start, end) in enumerate(itertools.pairwise(bounds)):
        rows = matrix[start:end].to(torch.float64)
        exact[g], magnitude[g] = rows.sum(0), rows.abs().sum(0)
    steps = torch.diff(offs, prepend=offs.new_zeros(1))[:, None].to(torch.float64)
    if held is not None:
        exact, magnitude, steps = exact + held.to(exact), magnitude + held.to(exact).abs(), steps + 1
    relative = steps * _FLOAT32_STEP.unit / (1 - steps * _FLOAT32_STEP.unit)
    flushed = steps * torch.finfo(torch.float32).tiny
    return exact, relative * magnitude + torch.where(magnitude > 0, flushed, 0.0)


def _bias_rows(exact: Tensor, offs: Tensor | None, bias: Tensor) -> Tensor:
    """The bias (G, N) as each row of a grouped result gets it; the tail gets none."""
    if exact.ndim == 3:
        return bias[:, None, :].expand_as(exact)
    rows = bias.repeat_interleave(torch.diff(offs, prepend=offs.new_zeros(1)), dim=0)
    return torch.cat([rows, rows.new_zeros(exact.shape[0] - rows.shape[0], exact.shape[1])])


def _grouped_shape(out: Tensor, mat_a: Tensor, mat_b: Tensor, offs: Tensor | None, tail: str):
    """Check a grouped result's form. Returns a function that names an element's group, and the index to compare."""
    if tail not in ("zero", "any"):
        raise ValueError(f'tail must be "zero" or "any", got {tail!r}')
    shape = (mat_a.shape[-2], mat_b.shape[-1])
    packed = (mat_a.ndim, mat_b.ndim) in ((2, 3), (3, 2))
    if not packed:
        shape = (mat_a.shape[0] if offs is None else offs.shape[0], *shape)
    check_result(out, torch.Size(shape), "the grouped product")
    dim = int(mat_a.ndim == 3)

    def group_at(at: Sequence[int]) -> str:
        if not packed:
            return f", in group {at[0]}"
        g = int((offs <= at[dim]).sum())
        return f", in group {g}" if g < offs.shape[0] else ", in the tail"

    if not packed or tail == "zero":
        return group_at, ()
    used = int(offs[-1]) if offs.shape[0] else 0
    return group_at, (slice(used),) if dim == 0 else (slice(None), slice(used))


def assert_grouped_close(
    out: Tensor,
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    *,
    tail: str = "zero",
    accumulation: str | None = None,
    **extras: Tensor | None,
) -> None:
    """Check the products of groups against the float64 oracle, each element within its own error bound.

    Args:
        out: the result, in the shape that `reference.grouped_mm` gives it, of any floating dtype.
        mat_a, mat_b, offs, extras: as `reference.grouped_mm`.
        tail: "zero" wants exact zeros past the last group (modes "m" and "n"), "any" ignores them.
        accumulation: as in `error_bound`.

    Raises:
        AssertionError: shape or dtype is wrong, or elements are; the message has their number, the first and the
            worst, the bound there, and the group that each belongs to.
        ValueError: as `grouped_error_bound`, or a group's operands are not finite.
    """
    group_at, part = _grouped_shape(out, mat_a, mat_b, offs, tail)
    exact, bound = grouped_error_bound(mat_a, mat_b, offs, out.dtype, accumulation=accumulation, **extras)
    if not bound.isfinite().all():
        raise ValueError(
            "mat_a and mat_b must be finite within the groups: there is no answer to compare with otherwise"
        )
    compare(out[part], exact[part], bound[part], "the grouped product", group_at)


def assert_grouped_exact(
    out: Tensor,
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    *,
    tail: str = "zero",
    **extras: Tensor | None,
) -> None:
    """Check that the products of whole numbers are the exact ones, rounded once to the result's dtype.

    Args: as `assert_grouped_close`. Operands and bias hold whole numbers within the groups, scales hold powers of two
    and come without a bias.

    Raises:
        AssertionError: as `assert_grouped_close`.
        ValueError: as `assert_exact`, or scales that are no powers of two or come with a bias.
    """
    group_at, part = _grouped_shape(out, mat_a, mat_b, offs, tail)
    a, b, *rows = whole_numbers(mat_a=mat_a, mat_b=mat_b, bias=extras.get("bias"))
    for name in ("scale_a", "scale_b"):
        t = extras.get(name)
        if t is not None and (rows or (torch.frexp(t.detach()).mantissa != 0.5).any()):
            raise ValueError(f"{name} must hold powers of two, without a bias beside it")
    magnitude = reference.grouped_mm(a.abs(), b.abs(), offs)
    for each in rows:
        magnitude += _bias_rows(magnitude, offs, each.abs())
    check_sums(magnitude, mat_a.dtype)
    wanted = reference.grouped_mm(a, b, offs, out.dtype, **extras)
    compare_exact(out[part], wanted[part], "the grouped product", group_at)
