"""How far the products of groups may be from the oracle: ``tolerance`` for every mode of grouped_mm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_kernels.testing import reference
from course_kernels.testing.tolerance import check_result, compare, fail, lookup, rounded_bound

__all__ = ["assert_grouped_close", "assert_grouped_exact", "grouped_error_bound"]


def grouped_error_bound(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None,
    out_dtype: torch.dtype,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    accumulation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`error_bound` for the products of groups, in any mode of `reference.grouped_mm`.

    Args:
        mat_a, mat_b, offs, bias, scale_a, scale_b: as `reference.grouped_mm`.
        out_dtype: floating dtype that the result is rounded to.
        accumulation: as in `error_bound`.

    Returns:
        Two float64 tensors of the result's shape: the value, and the largest absolute error. Both are 0 in the tail.

    Raises:
        ValueError: the dtypes differ, no tolerance is known for them, K is too long for a bound, or as
            `reference.grouped_mm`.
    """
    if mat_a.dtype != mat_b.dtype:
        raise ValueError(f"mat_a is {mat_a.dtype}, mat_b is {mat_b.dtype}: they must be equal")
    rule = lookup(mat_a.dtype, accumulation, mat_a.is_cuda)
    scales = dict(scale_a=scale_a, scale_b=scale_b)
    exact = reference.grouped_mm(mat_a, mat_b, offs, bias=bias, **scales).detach()
    widths = {name: None if t is None else t.detach().abs() for name, t in scales.items()}
    wide = [t.detach().to(torch.float64).abs() for t in (mat_a, mat_b)]
    products = reference.grouped_mm(*wide, offs, **widths)
    # Of K: each group's own in mode "k".
    k = mat_a.shape[-1]
    steps = torch.full((1, 1, 1) if exact.ndim == 3 else (1, 1), float(k), dtype=torch.float64, device=exact.device)
    if mat_a.ndim == mat_b.ndim == 2:
        steps = torch.diff(offs.detach(), prepend=offs.new_zeros(1))[:, None, None].to(torch.float64)
        k = int(steps.max()) if steps.numel() else 0
    if k * rule.unit >= 0.5:
        raise ValueError(f"K = {k} steps with an error of {rule.unit} each have no useful bound")
    relative = steps * rule.unit / (1 - steps * rule.unit) + rule.per_product
    magnitude = products if bias is None else products + _bias_rows(exact, offs, bias.detach().abs().to(exact))
    # Each scale and the bias is one more float32 operation on what came before.
    epilogue = sum(t is not None for t in (bias, scale_a, scale_b)) * 2.0**-23
    error = relative * products * (1 + epilogue) + epilogue * magnitude
    return exact, rounded_bound(exact, error, magnitude, k, out_dtype)


def _bias_rows(exact: Tensor, offs: Tensor | None, bias: Tensor) -> Tensor:
    """What each row of a grouped result gets of a bias (G, N); the tail gets none."""
    if exact.ndim == 3:
        return bias[:, None, :].expand_as(exact)
    rows = bias.repeat_interleave(torch.diff(offs, prepend=offs.new_zeros(1)), dim=0)
    return torch.cat([rows, rows.new_zeros(exact.shape[0] - rows.shape[0], exact.shape[1])])


def _grouped_shape(out: Tensor, mat_a: Tensor, mat_b: Tensor, offs: Tensor | None, tail: str):
    """Check a grouped result's form; return what names an element's group, and the index of the part to compare."""
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
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    tail: str = "zero",
    accumulation: str | None = None,
) -> None:
    """Check the products of groups against the float64 oracle, each element within its own error bound.

    Args:
        out: the result, in the shape that `reference.grouped_mm` gives it, of any floating dtype.
        mat_a, mat_b, offs, bias, scale_a, scale_b: as `reference.grouped_mm`.
        tail: "zero" wants exact zeros past the last group (modes "m" and "n"), "any" does not look there.
        accumulation: as in `error_bound`.

    Raises:
        AssertionError: shape or dtype is wrong, or elements are; the message has their number, the first and the
            worst, the bound there, and the group that each belongs to.
        ValueError: as `grouped_error_bound`, or a group's operands are not finite.
    """
    group_at, part = _grouped_shape(out, mat_a, mat_b, offs, tail)
    extras = dict(bias=bias, scale_a=scale_a, scale_b=scale_b)
    exact, bound = grouped_error_bound(mat_a, mat_b, offs, out.dtype, **extras, accumulation=accumulation)
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
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    tail: str = "zero",
) -> None:
    """Check that the products of whole numbers are the exact ones, rounded once to the result's dtype.

    Args:
        out: the result, in the shape that `reference.grouped_mm` gives it, of any floating dtype.
        mat_a, mat_b, offs, bias: as `reference.grouped_mm`; whole numbers within the groups.
        scale_a, scale_b: as `reference.grouped_mm`; powers of two, and no bias beside them.
        tail: as in `assert_grouped_close`.

    Raises:
        AssertionError: as `assert_grouped_close`.
        ValueError: as `assert_exact`, or scales that are no powers of two or come with a bias.
    """
    group_at, part = _grouped_shape(out, mat_a, mat_b, offs, tail)
    # What lies past the last group may be anything, NaN included, and whole numbers are wanted of the rest.
    wide = {"mat_a": mat_a, "mat_b": mat_b, "bias": bias}
    wide = {name: t.detach().to(torch.float64) for name, t in wide.items() if t is not None}
    for name, t in wide.items():
        if not torch.equal(t.nan_to_num(0.0), t.nan_to_num(0.0).round()):
            raise ValueError(f"{name} must hold whole numbers")
    scales = dict(scale_a=scale_a, scale_b=scale_b)
    for name, t in scales.items():
        if t is not None and (bias is not None or (torch.frexp(t.detach()).mantissa != 0.5).any()):
            raise ValueError(f"{name} must hold powers of two, without a bias beside it")
    a, b = wide["mat_a"], wide["mat_b"]
    limit = 2**13 if mat_a.dtype.itemsize == 1 else 2**24
    magnitude = reference.grouped_mm(a.abs(), b.abs(), offs)
    if bias is not None:
        magnitude += _bias_rows(magnitude, offs, wide["bias"].abs())
    if not (magnitude <= limit).all():
        raise ValueError(f"sum(|a| * |b|) reaches {magnitude.max().item():g}, past {limit}: sums need not be exact")
    wanted = reference.grouped_mm(a, b, offs, out.dtype, bias=bias, **scales).to(torch.float64)
    got, wanted = out.detach().to(torch.float64)[part], wanted[part]
    wrong = ~(got == wanted)
    if wrong.any():
        fail("the grouped product", got, wanted, wrong, (got - wanted).abs(), group_at)
