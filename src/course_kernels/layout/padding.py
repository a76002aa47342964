"""Index maps between packed rows and the padded slots of the masked layout; all on the device of their arguments."""

from __future__ import annotations

import torch
from torch import Tensor


def pad_indices(offsets: Tensor, slots: Tensor) -> Tensor:
    """(G, max_m) int64: the packed row of each slot, -1 where the slot is padding. ``offsets``: (G + 1,); ``slots``:
    0 to max_m - 1."""
    bounds = offsets.long()
    rows = bounds[:-1, None] + slots
    return torch.where(rows < bounds[1:, None], rows, -1)


def pack_indices(row_groups: Tensor, offsets: Tensor, rows: Tensor, max_m: int) -> Tensor:
    """(total_m,) int64: the slot of each packed row, -1 for the tail and for rows without a slot. ``rows``: 0 to
    total_m - 1."""
    group = row_groups.long()
    # Index -1 picks the last offset. Any value will do there, because the where below discards it.
    slot = rows - offsets.long()[group]
    return torch.where((group >= 0) & (slot < max_m), group * max_m + slot, -1)


def gather(rows: Tensor, index: Tensor, fill: float) -> Tensor:
    """rows[index] with `fill` where index is -1."""
    if rows.shape[0] == 0:  # a row for indices of -1 to read; the result still depends on `rows`, so it has a gradient
        rows = torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])
    if rows.dtype.is_floating_point and rows.dtype.itemsize == 1:
        # torch has few operations on fp8 values, but all of them on their bytes.
        pattern = torch.full((), fill, dtype=torch.float32, device=rows.device).to(rows.dtype)
        return _select(rows.view(torch.uint8), index, pattern.view(torch.uint8)).view(rows.dtype)
    return _select(rows, index, fill)


def _select(rows: Tensor, index: Tensor, fill: float | Tensor) -> Tensor:
    keep = (index >= 0).view(-1, *[1] * (rows.ndim - 1))
    return torch.where(keep, rows.index_select(0, index.clamp(min=0)), fill).to(rows.dtype)  # bool would become int64
