"""The oracle: every product of the course as a plain loop over groups in high precision.

Nothing here calls the library's kernels, so a test that compares against it compares two independent
computations. All functions accept any strides and every floating or integer dtype that torch can widen
exactly (fp8 included), may synchronise with the device, and are differentiable where torch's own casts are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from course_kernels.layout import GroupLayout

__all__ = ["gemm", "group_gemm", "grouped_mm", "padded_bmm"]


@contextmanager
def _without_tf32() -> Iterator[None]:
    """A float32 oracle that a global switch turns into 11-bit arithmetic would be no oracle."""
    saved = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = saved


def _check_matrix(name: str, value: Tensor, ndim: int) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, got shape {tuple(value.shape)}")
    if value.dtype.is_complex or value.dtype == torch.bool:
        raise TypeError(f"{name} must be floating point or integer, got {value.dtype}")


def _check_precision(compute_dtype: torch.dtype) -> None:
    if compute_dtype not in (torch.float64, torch.float32):
        raise ValueError(f"compute_dtype must be torch.float64 or torch.float32, got {compute_dtype}")


def gemm(
    a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None, *, compute_dtype: torch.dtype = torch.float64
) -> Tensor:
    """Multiply two matrices after widening both, and round once at the end.

    Args:
        a: (M, K), any dtype and strides.
        b: (K, N), any dtype and strides, on the device of `a`.
        out_dtype: dtype of the result; None keeps `compute_dtype`, so that nothing is rounded.
        compute_dtype: float64, or float32 where speed matters more than the last digits.

    Returns:
        (M, N) on the device of `a`; zeros where K is 0.

    Raises:
        TypeError: an operand is no tensor, or boolean or complex.
        ValueError: an operand is not 2-D, the K extents or the devices differ, or `compute_dtype` is another
            type.

    Notes:
        torch narrows float64 to 16 bits through float32. The two roundings differ from a single one only for
        sums that need more than 24 bits; sums of small integers never do.
    """
    _check_precision(compute_dtype)
    _check_matrix("a", a, 2)
    _check_matrix("b", b, 2)
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a has K = {a.shape[1]} columns, b has {b.shape[0]} rows: they must be equal")
    if a.device != b.device:
        raise ValueError(f"a is on {a.device}, b is on {b.device}: they must share a device")
    with _without_tf32():
        product = a.to(compute_dtype) @ b.to(compute_dtype)
    return product if out_dtype is None else product.to(out_dtype)


def group_gemm(
    group_A: Sequence[Tensor],
    group_B: Sequence[Tensor],
    out_dtype: torch.dtype | None = None,
    *,
    compute_dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Multiply each pair of a list of problems; M, N and K may differ from problem to problem.

    Args:
        group_A: G matrices (M_i, K_i).
        group_B: G matrices (K_i, N_i).
        out_dtype: dtype of the results; None keeps `compute_dtype`.
        compute_dtype: float64 or float32.

    Returns:
        G matrices (M_i, N_i).

    Raises:
        ValueError: the lists differ in length, or a problem's operands do not fit (the message has its
            index).
        TypeError: an operand is no tensor, or boolean or complex.
    """
    if len(group_A) != len(group_B):
        raise ValueError(f"group_A has {len(group_A)} matrices, group_B has {len(group_B)}: one B for each A")
    results = []
    for i, (a, b) in enumerate(zip(group_A, group_B, strict=True)):
        try:
            results.append(gemm(a, b, out_dtype, compute_dtype=compute_dtype))
        except (ValueError, TypeError) as error:
            raise type(error)(f"problem {i}: {error}") from None
    return results


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | GroupLayout,
    out_dtype: torch.dtype | None = None,
    *,
    compute_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Multiply each group's rows of a packed matrix with that group's own matrix.

    Args:
        mat_a: (total_m, K), the groups' rows one after another.
        mat_b: (G, K, N).
        offs: (G,) exclusive group ends, or any GroupLayout with G groups; its values are validated.
        out_dtype: dtype of the result; None keeps `compute_dtype`.
        compute_dtype: float64 or float32.

    Returns:
        (total_m, N); the tail (rows past the last group) is zero.

    Raises:
        ValueError: shapes do not fit, or the ends decrease or leave [0, total_m].
        TypeError: an operand is no tensor, or boolean or complex.
    """
    _check_precision(compute_dtype)
    _check_matrix("mat_a", mat_a, 2)
    _check_matrix("mat_b", mat_b, 3)
    layout = offs if isinstance(offs, GroupLayout) else GroupLayout.from_ends(offs)
    if layout.G != mat_b.shape[0]:
        raise ValueError(f"offs describes {layout.G} groups, mat_b holds {mat_b.shape[0]} matrices")
    if mat_a.shape[1] != mat_b.shape[1]:
        raise ValueError(f"mat_a has K = {mat_a.shape[1]}, mat_b has K = {mat_b.shape[1]}: they must be equal")
    total_m, n = mat_a.shape[0], mat_b.shape[2]
    layout.validate(total_m=total_m)
    bounds = layout.offsets.tolist()
    blocks = [
        gemm(mat_a[start:end], mat_b[g], compute_dtype=compute_dtype)
        for g, (start, end) in enumerate(itertools.pairwise(bounds))
    ]
    blocks.append(torch.zeros(total_m - bounds[-1], n, dtype=compute_dtype, device=mat_a.device))
    result = torch.cat(blocks)
    return result if out_dtype is None else result.to(out_dtype)


def padded_bmm(
    mat_a: Tensor,
    mat_b: Tensor,
    masked_m: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    compute_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Multiply padded groups one by one, ignoring what lies in the padding.

    Args:
        mat_a: (G, max_m, K), each group's rows first, padding after them.
        mat_b: (G, K, N).
        masked_m: (G,) int32 or int64 active rows of each group; None means that all rows are active.
        out_dtype: dtype of the result; None keeps `compute_dtype`.
        compute_dtype: float64 or float32.

    Returns:
        (G, max_m, N); padding rows are zero whatever mat_a holds there, NaN included.

    Raises:
        ValueError: shapes do not fit, or an entry of `masked_m` leaves [0, max_m].
        TypeError: an operand is no tensor, or boolean or complex.
    """
    _check_precision(compute_dtype)
    _check_matrix("mat_a", mat_a, 3)
    _check_matrix("mat_b", mat_b, 3)
    groups, max_m, k = mat_a.shape
    if (groups, k) != tuple(mat_b.shape[:2]):
        raise ValueError(
            f"mat_a has (G, K) = ({groups}, {k}), mat_b has ({mat_b.shape[0]}, {mat_b.shape[1]}): they must be equal"
        )
    if masked_m is None:
        rows = [max_m] * groups
    else:
        layout = GroupLayout.from_masked(masked_m, max_m).validate()
        if layout.G != groups:
            raise ValueError(f"masked_m describes {layout.G} groups, mat_a holds {groups}")
        rows = masked_m.tolist()
    result = torch.zeros(groups, max_m, mat_b.shape[2], dtype=compute_dtype, device=mat_a.device)
    for g, m in enumerate(rows):
        result[g, :m] = gemm(mat_a[g, :m], mat_b[g], compute_dtype=compute_dtype)
    return result if out_dtype is None else result.to(out_dtype)
