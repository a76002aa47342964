"""Checks of the arguments of ``gmm``, ``ptgmm`` and ``nptgmm``; errors name argument, value, valid values.

Every check is made before anything is written, with AITER's names. No check reads an address, so tensors may be fake.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from course_kernels.dtypes import OUT_DTYPES
from course_kernels.engine.product_checks import check_added_dtype, check_backend
from course_kernels.type_checks import check_dense, check_flags

RhsLayout: TypeAlias = Literal["auto", "gkn", "gnk"]
LhsLayout: TypeAlias = Literal["auto", "km", "mk"]
RHS_LAYOUTS: tuple[RhsLayout, ...] = get_args(RhsLayout)
LHS_LAYOUTS: tuple[LhsLayout, ...] = get_args(LhsLayout)
_NAMES = {"mat_a": "lhs", "mat_b": "rhs", "offs": "group_sizes (as ends)", "out_dtype": "preferred_element_type"}


def in_our_names(message: str, written: str = "existing_out") -> str:
    """A message of ``packed`` with the names of this room's arguments; ``written`` is the one that it calls out."""
    message = re.sub(r"\b(mat_a|mat_b|offs|out_dtype)\b", lambda found: _NAMES[found[0]], message)
    return re.sub(r"^out\b", written, message)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def check_operands(lhs, rhs, group_sizes, rhs_rank: int) -> None:
    """Raise unless the operands are tensors of the right ranks, dtypes and devices, and the sizes are integers."""
    for name, value, rank in (("lhs", lhs, 2), ("rhs", rhs, rhs_rank), ("group_sizes", group_sizes, 1)):
        check_dense(name, value)
        if getattr(value, "is_shuffled", False):
            raise TypeError(f"{name} must be a plain tensor, got a shuffled weight: unshuffle_weight first")
        if value.dim() != rank:
            raise ValueError(f"{name} must be {rank}-D, got shape {_shape(value)}")
        if value.device != lhs.device:
            raise ValueError(f"{name} must be on the device of lhs, {lhs.device}, got {value.device}")
    if lhs.dtype not in OUT_DTYPES:
        raise TypeError(f"lhs must have a dtype of {OUT_DTYPES}, got {lhs.dtype}")
    if rhs.dtype != lhs.dtype:
        raise TypeError(f"rhs must have the dtype of lhs, {lhs.dtype}, got {rhs.dtype}")
    if group_sizes.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"group_sizes must be torch.int32 or torch.int64, got {group_sizes.dtype}")


def check_options(preferred_element_type, backend, **flags) -> None:
    """Raise unless the result's dtype and the backend are known, and flags are True or False."""
    check_flags(**flags)
    if preferred_element_type not in OUT_DTYPES:
        raise TypeError(f"preferred_element_type must be one of {OUT_DTYPES}, got {preferred_element_type!r}")
    check_backend(backend)


def as_gkn(lhs: Tensor, rhs: Tensor, layout: str) -> Tensor:
    """``rhs`` as (G, K, N), by its layout or by its shape.

    Raises:
        ValueError: an unknown layout, or a shape that has no K where it should.
    """
    if layout not in RHS_LAYOUTS:
        raise ValueError(f"rhs_layout must be one of {RHS_LAYOUTS}, got {layout!r}")
    K = lhs.shape[1]
    if layout != "gnk" and rhs.shape[1] == K:
        return rhs
    if layout != "gkn" and rhs.shape[2] == K:
        return rhs.mT
    wanted = {"gkn": "(G, K, N)", "gnk": "(G, N, K)", "auto": "(G, K, N) or (G, N, K)"}[layout]
    raise ValueError(f"rhs must have shape {wanted} with K = {K}, the columns of lhs, got {_shape(rhs)}")


def as_km(lhs: Tensor, rhs: Tensor, layout: str) -> Tensor:
    """``lhs`` as (K, M), by its layout or by its shape.

    Raises:
        ValueError: an unknown layout, a shape that has no M where it should, or a square lhs without a layout. A batch
            may have as many rows as the layer has features: that must not change which of the two is meant.
    """
    if layout not in LHS_LAYOUTS:
        raise ValueError(f"lhs_layout must be one of {LHS_LAYOUTS}, got {layout!r}")
    M = rhs.shape[0]
    if layout != "mk" and lhs.shape[1] == M:
        if layout == "auto" and _has_rows(lhs, M) and M != 1:
            raise ValueError(
                f"lhs_layout must be 'km' or 'mk' where K equals M, got 'auto' with lhs of shape {_shape(lhs)}: its "
                "shape does not tell (K, M) from (M, K)"
            )
        return lhs
    if layout != "km" and lhs.shape[0] == M:
        return lhs.mT
    wanted = {"km": "(K, M)", "mk": "(M, K)", "auto": "(K, M) or (M, K)"}[layout]
    raise ValueError(f"lhs must have shape {wanted} with M = {M}, the rows of rhs, got {_shape(lhs)}")


def _has_rows(lhs: Tensor, M: int) -> bool:
    """Whether M is the number of rows, too: in a program for any M that is not compiled anew, whether it always is."""
    if not torch.compiler.is_compiling():
        return lhs.shape[0] == M
    from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true  # tracers have imported it

    # Not is_exporting(): the compiler of torch 2.11 answers it with yes.
    known = statically_known_true if torch.compiler._is_exporting_flag else guard_or_false
    return known(lhs.shape[0] == M)


def check_number_of_groups(group_sizes: Tensor, groups: int) -> None:
    """Raise unless there is one size for each matrix of ``rhs``."""
    if group_sizes.shape[0] != groups:
        raise ValueError(
            f"group_sizes must have one size for each of the {groups} groups of rhs, got {group_sizes.shape[0]}"
        )


def check_bias(bias, shape: tuple[int, int], lhs: Tensor) -> None:
    """Raise unless a bias (G, N) fits the product."""
    check_dense("bias", bias)
    if _shape(bias) != shape:
        raise ValueError(f"bias must have shape (G, N) = {shape}, got {_shape(bias)}")
    check_added_dtype("bias", bias, lhs.dtype, "lhs")
    if bias.device != lhs.device:
        raise ValueError(f"bias must be on the device of lhs, {lhs.device}, got {bias.device}")
