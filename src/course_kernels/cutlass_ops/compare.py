"""Whether a grouped product is right: compared with the reference loop and with torch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from course_kernels.cutlass_ops.operands import check_arguments, tensors
from course_kernels.testing.grouped_tolerance import grouped_error_bound


class Comparison(NamedTuple):
    """``out``, compared with the right answer.

    Attributes:
        right: every element is within its error bound.
        worst: the largest error, as a fraction of the bound at that element; infinite where a NaN is wrong.
        from_torch: the largest difference from ``torch.nn.functional.grouped_mm``; None where torch refuses.
        tail: the rows past the last group: "zero", "other", or "none" where there are no such rows.
    """

    right: bool
    worst: float
    from_torch: float | None
    tail: str


def compare(args) -> Comparison:
    """Compare ``out`` with a loop over the groups in float64, and with ``torch.nn.functional.grouped_mm``.

    Only ``tail`` of the comparison is about the tail. It reads the result, and so waits for the device.

    Args:
        args: of ``arguments``, with finite operands, and with the product in ``out``.

    Raises:
        TypeError: args are not of ``arguments``.
        ValueError: tensors without memory, on the device "meta".
    """
    check_arguments(args)
    mat_a, mat_b, out, offs = tensors(args)
    if out.is_meta:
        raise ValueError("args must have a result to compare, got tensors on the device 'meta', which have no memory")
    exact, bound = grouped_error_bound(mat_a, mat_b, offs, out.dtype)
    groups, rest = _parts(args.offsets_along, offs)
    error = (out.to(torch.float64) - exact).abs()[groups]
    # A bound of 0 admits an error of 0 only.
    share = torch.where(error == 0, 0.0, error / bound[groups]).nan_to_num(nan=float("inf"))
    worst = float(share.max()) if share.numel() else 0.0
    tail = out[rest] if rest is not None else out[:0]
    state = "none" if tail.numel() == 0 else "zero" if not tail.any() else "other"
    return Comparison(worst <= 1, worst, _difference(mat_a, mat_b, out, offs, groups), state)


def _parts(along: str, offs) -> tuple[tuple, tuple | None]:
    """Indices of the groups, and of the tail."""
    end = int(offs[-1]) if offs.numel() else 0
    if along == "k":
        return (), None
    before = () if along == "m" else (slice(None),)
    return (*before, slice(end)), (*before, slice(end, None))


def _difference(mat_a, mat_b, out, offs, groups) -> float | None:
    try:
        theirs = torch.nn.functional.grouped_mm(mat_a, mat_b, offs=offs, out_dtype=out.dtype)
    except (RuntimeError, ValueError):
        return None
    difference = (theirs.to(torch.float64) - out.to(torch.float64)).abs()[groups]
    return float(difference.max()) if difference.numel() else 0.0
