"""Checks of the arguments of the jagged products: the argument, what it got, what it wants."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from course_kernels.dtypes import OUT_DTYPES
from course_kernels.layout import GroupLayout
from course_kernels.type_checks import check_dense, check_extents, transposed_hint

Implementation: TypeAlias = Literal["auto", "triton", "helion"]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)


def check_form(A_packed, B, group_offsets, implementation) -> None:
    """Raise unless the arguments have ranks, shapes, dtypes and devices that fit; reads no values.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {IMPLEMENTATIONS}, got {implementation!r}")
    for name, matrix, shape in (("A_packed", A_packed, "(total_m, K)"), ("B", B, "(K, N)")):
        check_dense(name, matrix)
        if matrix.dim() != 2:
            raise ValueError(f"{name} must be 2-D, {shape}, got shape {tuple(matrix.shape)}")
        if matrix.dtype not in OUT_DTYPES:
            raise TypeError(f"{name} must have a dtype of {OUT_DTYPES}, got {matrix.dtype}")
        check_extents(name, matrix.shape)
    if A_packed.shape[1] != B.shape[0]:
        raise ValueError(
            f"A_packed has K = {A_packed.shape[1]} columns and B has {B.shape[0]} rows; they must be equal (shapes "
            f"{tuple(A_packed.shape)} and {tuple(B.shape)})" + transposed_hint("B", B, A_packed.shape[1])
        )
    check_dense("group_offsets", group_offsets)
    if group_offsets.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"group_offsets must be torch.int32 or torch.int64, got {group_offsets.dtype}")
    if group_offsets.dim() != 1 or not group_offsets.shape[0]:
        raise ValueError(
            "group_offsets must be 1-D with G + 1 entries, a 0 and the end of each group, got shape "
            f"{tuple(group_offsets.shape)}"
        )
    for name, tensor in (("B", B), ("group_offsets", group_offsets)):
        if tensor.device != A_packed.device:
            raise ValueError(f"{name} must be on the device of A_packed, {A_packed.device}, got {tensor.device}")


def check_values(group_offsets: Tensor, total_m: int) -> None:
    """Check the values of the offsets; waits for the device.

    Raises:
        ValueError: with the index and the value.
    """
    try:
        GroupLayout.from_offsets(group_offsets).validate()
    except ValueError as error:
        raise ValueError(str(error).replace("offsets[", "group_offsets[")) from None
    last = int(group_offsets[-1])
    if last != total_m:
        raise ValueError(
            f"group_offsets[{group_offsets.shape[0] - 1}] = {last} must be the number of A_packed's rows, {total_m}"
        )
