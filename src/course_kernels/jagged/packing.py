"""Lists of matrices with one B in common, as the arguments of the jagged products; and what these must compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_kernels.type_checks import check_dense

__all__ = ["pack_group_inputs", "reference"]


def pack_group_inputs(group_A: Sequence[Tensor], group_B: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Pack G matrices and the B that they share.

    Args:
        group_A: G matrices (M_i, K) of one dtype and device; any M_i may be 0.
        group_B: G times the same matrix (K, N): one tensor repeated, views of the same memory, or equal copies.

    Returns:
        A_packed (sum of M_i, K), row-major, a copy; B, which is ``group_B[0]`` itself; group_offsets (G + 1,) int32
        (int64 where the sum needs it) on the device of A.

    Raises:
        TypeError: an entry is no dense tensor, or the dtypes of a list differ.
        ValueError: the lists are empty or of different lengths, shapes or devices do not fit, or the Bs differ; the
            message names the first entry that is wrong.

    Notes:
        Copies of B are compared element by element, which waits for the device; one tensor repeated is not.
        Helion's example, after which this is named, takes the first B and does not look at the others.
    """
    _check_lists(group_A, group_B)
    shared = group_B[0]
    for g, other in enumerate(group_B):
        if other is not shared and not _same_matrix(other, shared):
            raise ValueError(
                f"group_B[{g}] differs from group_B[0]: one B must be shared by all groups. For a B of its own for "
                "each group, call group_gemm (lists) or grouped_mm (packed rows, a (G, K, N) tensor of weights)"
            )
    sizes = [matrix.shape[0] for matrix in group_A]
    dtype = torch.int32 if sum(sizes) <= torch.iinfo(torch.int32).max else torch.int64
    offsets = torch.tensor([0, *sizes], dtype=torch.int64, device="cpu").cumsum(0).to(dtype)
    return torch.cat(list(group_A)), shared, offsets.to(group_A[0].device)


def reference(group_A: Sequence[Tensor], group_B: Sequence[Tensor]) -> Tensor:
    """The products A_i @ B_i one below the other, by torch: (sum of M_i, N), of the promoted dtype.

    Each product uses its own B. Operands are multiplied in float32, and the result is rounded once.
    """
    _check_lists(group_A, group_B)
    dtype = torch.promote_types(group_A[0].dtype, group_B[0].dtype)
    return torch.cat([(a.float() @ b.float()).to(dtype) for a, b in zip(group_A, group_B)])


def _check_lists(group_A, group_B) -> None:
    for name, group in (("group_A", group_A), ("group_B", group_B)):
        if isinstance(group, Tensor) or not isinstance(group, Sequence):
            raise TypeError(f"{name} must be a list of matrices, got {type(group).__name__}")
    if not group_A or len(group_A) != len(group_B):
        raise ValueError(
            f"group_A and group_B must have one matrix for each group, at least one; got {len(group_A)} and "
            f"{len(group_B)}"
        )
    for name, group in (("group_A", group_A), ("group_B", group_B)):
        for g, matrix in enumerate(group):
            check_dense(f"{name}[{g}]", matrix)
            if matrix.dim() != 2:
                raise ValueError(f"{name}[{g}] must be 2-D, got shape {tuple(matrix.shape)}")
            if matrix.dtype != group[0].dtype:
                raise TypeError(f"{name}[{g}] must have the dtype of {name}[0], {group[0].dtype}, got {matrix.dtype}")
            if matrix.device != group_A[0].device:
                raise ValueError(
                    f"{name}[{g}] must be on the device of group_A[0], {group_A[0].device}, got {matrix.device}"
                )
    K, N = group_B[0].shape
    for g, (a, b) in enumerate(zip(group_A, group_B)):
        if a.shape[1] != K:
            raise ValueError(
                f"group_A[{g}] must have K = {K} columns, as many as group_B[0] has rows, got {a.shape[1]}"
            )
        if b.shape != (K, N):
            raise ValueError(f"group_B[{g}] must have the shape of group_B[0], {(K, N)}, got {tuple(b.shape)}")


def _same_matrix(matrix: Tensor, other: Tensor) -> bool:
    """Whether two matrices of one form are the same memory, or hold the same values (a NaN is equal to itself)."""
    if matrix.data_ptr() == other.data_ptr() and matrix.stride() == other.stride():
        return matrix.is_neg() == other.is_neg()
    return bool(((matrix == other) | (matrix.isnan() & other.isnan())).all())
