"""From packed rows to the padded slots of the masked layout and back, by index maps on its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from course_kernels.layout import checks


class PaddedRows:
    """The part of GroupLayout that moves rows; it needs the descriptions that GroupLayout adds."""

    if TYPE_CHECKING:
        kind: str
        G: int
        max_m: int | None
        dtype: torch.dtype
        device: torch.device
        sizes: Tensor
        offsets: Tensor
        row_groups: Callable[[int], Tensor]

    def masked(self, max_m: int | None = None) -> Tensor:
        """Which slots of a padded tensor hold a row.

        Args:
            max_m: slots of each group; may be left out where the layout was built from `masked_m`.

        Returns:
            (G, max_m) bool.

        Raises:
            TypeError, ValueError: an extent is no int, is negative, or is missing where it is needed.
        """
        slots = torch.arange(self._slots(max_m), dtype=self.dtype, device=self.device)
        return slots < self.sizes[:, None]

    def pad_indices(self, max_m: int | None = None) -> Tensor:
        """For each slot of the padded layout, the packed row that belongs there.

        Args:
            max_m: slots of each group; may be left out where the layout was built from `masked_m`.

        Returns:
            (G, max_m) int64 packed row numbers; -1 where the slot is padding.

        Raises:
            TypeError, ValueError: an extent is no int, is negative, or is missing where it is needed.
        """
        slots = torch.arange(self._slots(max_m), device=self.device)
        bounds = self.offsets.long()
        rows = bounds[:-1, None] + slots
        return torch.where(rows < bounds[1:, None], rows, -1)

    def pack_indices(self, total_m: int, max_m: int | None = None) -> Tensor:
        """For each packed row, the slot of the padded layout (flattened to G * max_m) that it comes from.

        Args:
            total_m: number of packed rows, tail included.
            max_m: slots of each group; may be left out where the layout was built from `masked_m`.

        Returns:
            (total_m,) int64 slot numbers g * max_m + i; -1 in the tail, and for a row that its group's slots
            cannot hold.

        Raises:
            TypeError, ValueError: an extent is no int, is negative, or is missing where it is needed.
        """
        max_m = self._slots(max_m)
        checks.extent("total_m", total_m)
        group = self.row_groups(total_m).long()
        rows = torch.arange(total_m, device=self.device)
        # Index -1 picks the last offset: any value will do there, as the where below discards it.
        slot = rows - self.offsets.long()[group]
        return torch.where((group >= 0) & (slot < max_m), group * max_m + slot, -1)

    def pad(self, packed: Tensor, max_m: int | None = None, *, fill: float = 0) -> Tensor:
        """Spread packed rows over padded slots.

        Args:
            packed: (total_m, ...) rows, on the layout's device.
            max_m: slots of each group; may be left out where the layout was built from `masked_m`. Rows
                beyond a group's slots are dropped; `validate(max_m=...)` reports them.
            fill: what the padding holds.

        Returns:
            (G, max_m, ...) of the dtype of `packed`, a copy; differentiable.

        Raises:
            TypeError, ValueError: `packed` is no tensor of rows on the layout's device, or `max_m`
                is no extent.
        """
        checks.rows("packed", packed, 1, self.device)
        index = self.pad_indices(max_m)
        # A layout that claims more rows than there are must not read past them.
        index = torch.where(index < packed.shape[0], index, -1)
        return _gather(packed, index.flatten(), fill).unflatten(0, index.shape)

    def pack(self, padded: Tensor, total_m: int, *, fill: float = 0) -> Tensor:
        """Collect the active rows of padded groups one after another.

        Args:
            padded: (G, max_m, ...), on the layout's device.
            total_m: number of rows of the result; a host number, so that nothing has to be read back.
            fill: what the tail holds.

        Returns:
            (total_m, ...) of the dtype of `padded`, a copy; differentiable.

        Raises:
            TypeError, ValueError: `padded` is no tensor of G groups on the layout's device, or has another
                number of slots than the layout, or `total_m` is no extent.
        """
        checks.rows("padded", padded, 2, self.device)
        if padded.shape[0] != self.G:
            raise ValueError(f"padded holds {padded.shape[0]} groups, the layout has G = {self.G}")
        if self.max_m is not None and padded.shape[1] != self.max_m:
            raise ValueError(f"padded holds {padded.shape[1]} slots a group, the layout has max_m = {self.max_m}")
        return _gather(padded.flatten(0, 1), self.pack_indices(total_m, padded.shape[1]), fill)

    def _slots(self, max_m: int | None) -> int:
        if max_m is None:
            max_m = self.max_m
        if max_m is None:
            raise ValueError(f"max_m is needed, as a layout of {self.kind} does not hold the number of slots")
        checks.extent("max_m", max_m)
        return max_m


def _gather(rows: Tensor, index: Tensor, fill: float) -> Tensor:
    """rows[index] with `fill` where index is -1."""
    shape = (index.shape[0], *rows.shape[1:])
    if rows.shape[0] == 0 or index.shape[0] == 0:
        return rows.new_full(shape, fill)
    if rows.dtype.is_floating_point and rows.dtype.itemsize == 1:
        # torch moves few fp8 values around; their bytes it does.
        pattern = torch.full((), fill, dtype=torch.float32, device=rows.device).to(rows.dtype)
        return _select(rows.view(torch.uint8), index, pattern.view(torch.uint8)).view(rows.dtype)
    return _select(rows, index, fill)


def _select(rows: Tensor, index: Tensor, fill: float | Tensor) -> Tensor:
    keep = (index >= 0).view(-1, *[1] * (rows.ndim - 1))
    return torch.where(keep, rows.index_select(0, index.clamp(min=0)), fill)
