"""Float8 operands with a factor for each line along what a product sums over."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from course_kernels.contexts import is_plain, is_profiling
from course_kernels.fp8.quantize import (
    as_batch,
    countable,
    define,
    device_of,
    magnitudes_of,
    readable,
    rounded,
    scale_of,
    uses_torch,
)
from course_kernels.layout import GroupLayout

Backend = Literal["auto", "triton", "torch"]
# Constants of the kernels that can also activate: no activation.
UNACTIVATED = dict(GATED=False, STEP=1, FUNCTION=None, ALPHA=1.0, LIMIT=None, SHIFT=0.0)


def quantize_lines(
    matrix: Tensor, dtype: torch.dtype, power_of_two: bool = False, backend: Backend = "auto"
) -> tuple[Tensor, Tensor]:
    """Round a matrix (..., lines, D) of any strides to float8, D contiguous as tensor cores want it, with a float32
    factor for each line. Factors, zeros, NaN and infinities, and ``backend``, are as for ``quantize_1x128``."""
    matrix = matrix.detach()
    if is_plain(matrix) and not is_profiling():
        return _lines(matrix, dtype, power_of_two, backend)
    return torch.ops.course_kernels.quantize_lines(matrix, dtype, power_of_two, backend)


def quantize_group_lines(
    matrix: Tensor, offs: Tensor, dtype: torch.dtype, power_of_two: bool = False, backend: Backend = "auto"
) -> tuple[Tensor, Tensor]:
    """Round the transpose of a matrix (total_m, lines) to float8, total_m contiguous, with a float32 factor for each
    line of each group (G, lines). Values after the last group are zeros. Otherwise as ``quantize_lines``."""
    matrix = matrix.detach()
    if is_plain(matrix, offs) and not is_profiling():
        return _group_lines(matrix, offs, dtype, power_of_two, backend)
    return torch.ops.course_kernels.quantize_group_lines(matrix, offs, dtype, power_of_two, backend)


def _lines(
    matrix: Tensor, dtype: torch.dtype, power_of_two: bool, backend: str, fake: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute values and factors; with ``fake``, only allocate them."""
    q = matrix.new_empty(matrix.shape, dtype=dtype)
    scale = matrix.new_empty(matrix.shape[:-1], dtype=torch.float32)
    if fake:
        return q, scale
    if uses_torch(backend, matrix.device) or not q.numel():
        _lines_by_torch(matrix, power_of_two, q, scale)
    else:
        _lines_by_triton(matrix, power_of_two, q, scale)
    return q, scale


def _group_lines(
    matrix: Tensor, offs: Tensor, dtype: torch.dtype, power_of_two: bool, backend: str, fake: bool = False
) -> tuple[Tensor, Tensor]:
    total, lines = matrix.shape
    q = matrix.new_empty((lines, total), dtype=dtype)
    scale = matrix.new_empty((offs.shape[0], lines), dtype=torch.float32)
    if fake:
        return q, scale
    if uses_torch(backend, matrix.device) or not q.numel():
        _group_lines_by_torch(matrix, offs, power_of_two, q, scale)
    else:
        _group_lines_by_triton(matrix, offs, power_of_two, q, scale)
    return q, scale


# ---- with kernels


def _lines_by_triton(matrix: Tensor, power_of_two: bool, q: Tensor, scale: Tensor) -> None:
    from course_kernels.kernels.moe_float8 import quantize_rows_kernel

    x = as_batch(readable(countable(matrix)), rank=1)
    batch, lines, cols = x.shape
    # Loads are coalesced along whichever direction has a stride of 1, and stores along the lines.
    block_m, block_n, warps = 64, 128, 8
    if x.stride(1) != 1 or x.stride(2) == 1:
        block_n = min(1024, max(16, 1 << (cols - 1).bit_length()))
        block_m, warps = 4096 // block_n, 4
    with device_of(matrix):
        quantize_rows_kernel[(batch * -(-lines // block_m),)](
            x_ptr=x, offs_ptr=None, q_ptr=q, scale_ptr=scale, tokens=batch * lines, lines=lines, stride_b=x.stride(0),
            stride_r=x.stride(1), stride_c=x.stride(2), COLS=cols, EXPERTS=0, **UNACTIVATED, POWER_OF_TWO=power_of_two,
            WHOLE=True, BLOCK_M=block_m, BLOCK_N=block_n, ROUND=not matrix.is_cuda, num_warps=warps,
        )  # fmt: skip


def _group_lines_by_triton(matrix: Tensor, offs: Tensor, power_of_two: bool, q: Tensor, scale: Tensor) -> None:
    from course_kernels.kernels.moe_float8 import quantize_group_columns_kernel

    x, groups = readable(matrix), offs.shape[0]
    (total, cols), block = matrix.shape, 64
    with device_of(matrix):
        quantize_group_columns_kernel[((groups + 1) * -(-cols // block),)](
            x_ptr=x, index_ptr=None, slots_ptr=None, weights_ptr=None, offs_ptr=offs.contiguous(), q_ptr=q,
            scale_ptr=scale, tokens=total, stride_r=x.stride(0), stride_c=x.stride(1), COLS=cols, EXPERTS=groups,
            **UNACTIVATED, POWER_OF_TWO=power_of_two, BLOCK_M=block, BLOCK_N=block, ROUND=not matrix.is_cuda,
        )  # fmt: skip


# ---- without kernels


def _lines_by_torch(matrix: Tensor, power_of_two: bool, q: Tensor, scale: Tensor) -> None:
    magnitudes = magnitudes_of(matrix)
    largest = magnitudes.amax(-1) if matrix.shape[-1] else magnitudes.sum(-1)  # amax refuses lines of length 0
    scale.copy_(scale_of(largest, q.dtype, power_of_two))
    rounded(matrix, scale.reciprocal()[..., None], q)


def _group_lines_by_torch(matrix: Tensor, offs: Tensor, power_of_two: bool, q: Tensor, scale: Tensor) -> None:
    layout, (total, lines) = GroupLayout.from_ends(offs), matrix.shape
    groups = layout.row_groups(total).long() if layout.G else offs.new_full((total,), -1).long()
    groups = torch.where(groups < 0, layout.G, groups)  # the tail is one more group, dropped at the end
    largest = torch.zeros(layout.G + 1, lines, dtype=torch.float32, device=matrix.device)
    largest = largest.scatter_reduce(0, groups[:, None].expand(total, lines), magnitudes_of(matrix), "amax")
    factors = scale_of(largest, q.dtype, power_of_two)
    rounded(matrix.mT, factors.reciprocal()[groups].mT, q, groups < layout.G)
    scale.copy_(factors[:-1])


# ---- operators

define("quantize_lines(Tensor matrix, ScalarType dtype, bool power_of_two, str backend) -> (Tensor, Tensor)", _lines)
define(
    "quantize_group_lines(Tensor matrix, Tensor offs, ScalarType dtype, bool power_of_two, str backend) "
    "-> (Tensor, Tensor)",
    _group_lines,
)
