"""Float8 operands of mode "k" in which every group is whole blocks of 128.

Tensor cores read 8-bit operands with their depth contiguous. Groups along that depth begin anywhere, but the hardware
loads only from multiples of 16 bytes, and blocks with factors start at the beginning of their group. So here each group
begins at a multiple of 128, and zeros fill its last block. Its factors are those of blocks that do not restart.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.engine.scale_blocks import BLOCK, first_column, padded_columns
from course_kernels.kernels.codes import compared_groups


class WholeBlocks(NamedTuple):
    """A matrix whose groups are whole blocks, with its factors and the groups' ends.

    Attributes:
        values: (lines, 128 * blocks), contiguous, with ``blocks = total // 128 + G``: no more are needed. What follows
            the last group is undefined.
        scale: float32 (lines, blocks), stored block by block, or None.
        ends: int32 (G,), multiples of 128.
    """

    values: Tensor
    scale: Tensor | None
    ends: Tensor


def allocate(lines: Tensor, groups: int, dtype: torch.dtype, scaled: bool) -> WholeBlocks:
    """Allocate whole blocks for a matrix (lines, total)."""
    count, blocks = lines.shape[0], padded_columns(lines.shape[1], groups)
    scale = lines.new_empty((blocks, count), dtype=torch.float32).mT if scaled else None
    ends = lines.new_empty((groups,), dtype=torch.int32)
    return WholeBlocks(lines.new_empty((count, blocks * BLOCK), dtype=dtype), scale, ends)


def pack(values: Tensor, offs: Tensor, scale: Tensor | None = None, restart: bool = True) -> WholeBlocks:
    """Copy an 8-bit matrix (lines, total) of any strides into whole blocks, on the current stream.

    Args:
        values: the matrix.
        offs: (G,), contiguous, the ends of the groups.
        scale: (lines, C) factors of blocks, any strides, or None.
        restart: whether blocks restart at every group in ``scale``.
    """
    from course_kernels.kernels.quantize import pack_lines_kernel

    made = allocate(values, offs.shape[0], values.dtype, scale is not None)
    lines, columns = values.shape[0], made.values.shape[1] // BLOCK
    block, groups = 64, offs.shape[0]
    strides = [0] * 4 if scale is None else [*scale.stride(), *made.scale.stride()]
    with runtime.interpreting() if not values.is_cuda else torch.cuda.device(values.device):
        pack_lines_kernel[(columns * -(-lines // block),)](
            values.view(torch.uint8), made.values.view(torch.uint8), scale, made.scale, offs, made.ends,
            *(lines, values.shape[1], columns, groups), *values.stride(), made.values.stride(0), *strides,
            RESTART=restart, GROUPS=fill_ends(made.ends, offs, values.shape[1]), BLOCK_L=block, num_warps=8,
        )  # fmt: skip
    return made


def pack_by_torch(values: Tensor, offs: Tensor, scale: Tensor) -> WholeBlocks:
    """``pack`` without a kernel, for blocks that restart. Values after the last group, and factors without a block, are
    zeros."""
    made = allocate(values, offs.shape[0], values.dtype, True)
    if not offs.shape[0]:
        made.values.zero_(), made.scale.zero_()
        return made
    starts, blocks, lasts = _spans(offs, values.shape[1])
    made.ends.copy_(lasts * BLOCK)
    to = torch.arange(made.values.shape[1] // BLOCK, dtype=torch.int64, device=values.device)
    g = torch.searchsorted(lasts, to, right=True)
    inside, g = g < offs.shape[0], g.clamp(max=offs.shape[0] - 1)
    in_group = to - (lasts - blocks)[g]
    column = torch.where(inside, first_column(starts[g], g) + in_group, 0)
    made.scale.copy_(torch.where(inside, scale[:, column], 0.0))
    columns = torch.arange(BLOCK, dtype=torch.int64, device=values.device)
    at = ((starts[g] + in_group * BLOCK)[:, None] + columns).flatten()
    inside = inside.repeat_interleave(BLOCK) & (at < offs.long().clamp(0, values.shape[1])[g].repeat_interleave(BLOCK))
    padded = torch.nn.functional.pad(values.view(torch.uint8), (0, 1))  # one more column, of zeros
    made.values.view(torch.uint8).copy_(padded[:, torch.where(inside, at, values.shape[1])])
    return made


def fill_ends(ends: Tensor | None, offs: Tensor, total: int) -> int:
    """``GROUPS`` of a launch. Where it is 0, kernels search in the ends of whole blocks, which are written here."""
    compared = compared_groups(offs.shape[0] + 1)
    if ends is not None and not compared:
        ends.copy_(ends_of(offs, total))
    return compared


def ends_of(offs: Tensor, total: int) -> Tensor:
    """The ends of the groups as whole blocks."""
    return (_spans(offs, total)[2] * BLOCK).to(torch.int32)


def _spans(offs: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each group's start, its number of blocks, and the running sum of these numbers."""
    ends = offs.long().clamp(0, total)
    starts = torch.cat([ends.new_zeros(1), ends])[:-1]
    blocks = ((ends - starts).clamp(min=0) + BLOCK - 1) // BLOCK
    return starts, blocks, blocks.cumsum(0)
