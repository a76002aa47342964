"""Every way to describe the groups of a grouped GEMM, and the conversions between them.

The same three groups of 2, 0 and 3 rows, with one row of padding after them:

    sizes        (G,)            2 0 3
    ends         (G,)            2 2 5           exclusive; called `offs` by torch and CUTLASS
    offsets      (G + 1,)        0 2 2 5         starts and the end
    row_groups   (total_m,)      0 0 2 2 2 -1    the group of each row, -1 is padding
    masked       (G,) + max_m    2 0 3           group g owns the first masked_m[g] of its own max_m slots

A conversion is a few operations on the description's device. None reads a value on the host, so all of them can run
ahead of the GPU, inside a CUDA graph, and on fake or meta tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_kernels.contexts import refuse_dtensors
from course_kernels.layout import checks, padding

__all__ = ["GroupLayout", "padding_waste"]

_KINDS = ("sizes", "ends", "offsets", "row_groups", "masked_m")
_MAX_SHOWN = 16  # a repr with more sizes than this fills a notebook's line


@dataclass(frozen=True, eq=False, repr=False)
class GroupLayout:
    """How the rows of a packed or padded matrix belong to G groups.

    >>> layout = GroupLayout.from_sizes(torch.tensor([2, 0, 3]))
    >>> layout.offs.tolist(), layout.row_groups(6).tolist()
    ([2, 2, 5], [0, 0, 2, 2, 2, -1])

    Build one with a `from_...` constructor. A layout keeps a reference to the given tensor and computes every
    other description, on that tensor's device and in its dtype, when asked. Nothing is cached: a cached
    description would be stale after the given tensor is rewritten in place, as a CUDA graph's static inputs are.

    The rows of group 0 start at packed row 0, and each group starts where the previous one ends. Rows after the
    last group are the tail.

    Methods take two numbers from the host: `total_m`, the packed rows, tail included, and `max_m`, the slots of each
    group, which may be left out where the layout was built from `masked_m`.

    Raises:
        TypeError: a description is no tensor, or neither int32 nor int64; a count is no int; a DTensor is given where
            rows or slots are counted, or rows are moved.
        ValueError: a description is not 1-D, or has the wrong length; a count is negative, or missing.

    Attributes:
        source: the description given, (G,), (G + 1,) or (total_m,), int32 or int64.
        kind: which of the five descriptions `source` is.
        G: number of groups.
        max_m: row slots of each group in the masked description, else None.
    """

    source: Tensor
    kind: str
    G: int
    max_m: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {self.kind!r}")
        checks.description(self.kind, self.source)
        checks.extent("G", self.G)
        extra = 1 if self.kind == "offsets" else 0
        if self.kind != "row_groups" and self.source.shape[0] != self.G + extra:
            raise ValueError(
                f"{self.kind} of G = {self.G} groups must have {self.G + extra} entries, got {self.source.shape[0]}"
            )
        if self.max_m is not None:
            checks.extent("max_m", self.max_m)
        if (self.kind == "masked_m") != (self.max_m is not None):
            raise ValueError(f"max_m belongs to masked_m and to nothing else, got max_m={self.max_m} and {self.kind}")

    # ---- the five descriptions, in

    @classmethod
    def from_sizes(cls, sizes: Tensor) -> GroupLayout:
        """Groups from `sizes`, (G,) int32 or int64: the rows of each group."""
        checks.description("sizes", sizes)
        return cls(sizes, "sizes", sizes.shape[0])

    @classmethod
    def from_ends(cls, ends: Tensor) -> GroupLayout:
        """Groups from `ends`, (G,) int32 or int64: exclusive ends, not decreasing (`offs` in torch and CUTLASS)."""
        checks.description("ends", ends)
        return cls(ends, "ends", ends.shape[0])

    @classmethod
    def from_offsets(cls, offsets: Tensor) -> GroupLayout:
        """Groups from `offsets`, (G + 1,) int32 or int64: 0, then the ends, not decreasing (as in Helion). No groups
        are a single 0."""
        checks.description("offsets", offsets)
        return cls(offsets, "offsets", offsets.shape[0] - 1)

    @classmethod
    def from_row_groups(cls, row_groups: Tensor, G: int) -> GroupLayout:
        """Groups from the group of each row.

        Args:
            row_groups: (total_m,) int32 or int64; entries in [-1, G), sorted, with the -1 of padding rows last.
            G: number of groups, which the ids do not tell, because the last groups may be empty.

        Notes:
            A router's ids are not sorted. `order = GroupLayout.sort_order(ids)` sorts them: use `rows[order]` and
            `from_row_groups(ids[order], G)`. On unsorted ids, or ids with padding between groups, the sizes are
            right but the rows are elsewhere. An id outside [-1, G) counts as padding. `validate` reports all three.
        """
        checks.description("row_groups", row_groups)
        return cls(row_groups, "row_groups", G)

    @classmethod
    def from_masked(cls, masked_m: Tensor, max_m: int) -> GroupLayout:
        """Groups from `masked_m`, (G,) int32 or int64: the active rows of each group among its `max_m` slots in a
        padded (G, max_m, ...) tensor."""
        checks.description("masked_m", masked_m)
        return cls(masked_m, "masked_m", masked_m.shape[0], max_m)

    # ---- the five descriptions, out

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every description, that of the given tensor."""
        return self.source.dtype

    @property
    def device(self) -> torch.device:
        """The device of every description, that of the given tensor."""
        return self.source.device

    @property
    def sizes(self) -> Tensor:
        """(G,) rows of each group."""
        if self.kind in ("sizes", "masked_m"):
            return self.source
        if self.kind == "row_groups":
            return _count(self.source, self.G)
        return torch.diff(self.offsets)

    @property
    def masked_m(self) -> Tensor:
        """(G,) active rows of each group; the same numbers as `sizes`, read as a masked layout's counts."""
        return self.sizes

    @property
    def ends(self) -> Tensor:
        """(G,) exclusive end row of each group."""
        if self.kind == "ends":
            return self.source
        if self.kind == "offsets":
            return self.source[1:]
        return torch.cumsum(self.sizes, 0, dtype=self.dtype)

    @property
    def offs(self) -> Tensor:
        """(G,) exclusive end row of each group, under the name that torch's grouped_mm gives it."""
        return self.ends

    @property
    def offsets(self) -> Tensor:
        """(G + 1,) first row of each group, and the end of the last."""
        if self.kind == "offsets":
            return self.source
        ends = self.ends
        return torch.cat([ends.new_zeros(1), ends])

    def row_groups(self, total_m: int | None = None) -> Tensor:
        """(total_m,) group of each packed row, -1 in the tail. A layout built from row ids needs no `total_m`."""
        if self.kind == "row_groups" and total_m in (None, self.source.shape[0]):
            # In a model spread over ranks, other ranks' experts have ids outside of [0, G).
            return torch.where(_names_group(self.source, self.G), self.source, -1)
        if total_m is None:
            raise ValueError(f"row_groups needs total_m, as a layout of {self.kind} does not hold the number of rows")
        checks.extent("total_m", total_m)
        rows = self._range(total_m)
        ends = self.ends.contiguous()
        # The number of ends at or before a row is its group. That steps over empty groups, too.
        group = torch.searchsorted(ends, rows, right=True, out_int32=self.dtype == torch.int32)
        return torch.where(group < self.G, group, -1)

    @staticmethod
    def sort_order(row_groups: Tensor) -> Tensor:
        """The permutation that sorts rows by group, as dispatch in a mixture of experts does.

        Args:
            row_groups: (total_m,) int32 or int64 ids in any order; negative ids are padding.

        Returns:
            (total_m,) int64 `order`: `row_groups[order]` is sorted with padding last. Rows of one group keep their
            order.
        """
        checks.description("row_groups", row_groups)
        last = torch.iinfo(row_groups.dtype).max
        return torch.argsort(torch.where(row_groups < 0, last, row_groups), stable=True)

    # ---- rows, moved

    def masked(self, max_m: int | None = None) -> Tensor:
        """(G, max_m) bool: which slots of a padded tensor hold a row."""
        return self._range(self._slots(max_m)) < self.sizes[:, None]

    def pad_indices(self, max_m: int | None = None) -> Tensor:
        """(G, max_m) int64: the packed row of each slot of the padded layout, -1 where the slot is padding."""
        return padding.pad_indices(self.offsets, self._range(self._slots(max_m)))

    def pack_indices(self, total_m: int, max_m: int | None = None) -> Tensor:
        """(total_m,) int64: the slot g * max_m + i of each packed row; -1 in the tail, and for a row beyond its group's
        slots."""
        max_m = self._slots(max_m)
        checks.extent("total_m", total_m)
        return padding.pack_indices(self.row_groups(total_m), self.offsets, self._range(total_m), max_m)

    def pad(self, packed: Tensor, max_m: int | None = None, *, fill: float = 0) -> Tensor:
        """Spread packed rows over padded slots.

        Args:
            packed: (total_m, ...) rows, on the layout's device.
            max_m: as in the class. Rows beyond a group's slots are dropped; `validate(max_m=...)` reports them.
            fill: value of the padding.

        Returns:
            (G, max_m, ...) of the dtype of `packed`, a copy; differentiable.

        Raises:
            TypeError, ValueError: `packed` is no dense tensor of rows on the layout's device, `max_m` is no extent, or
                `fill` no number (an int for rows of integers).
        """
        checks.rows("packed", packed, 1, self.device)
        checks.fill(fill, packed.dtype)
        index = self.pad_indices(max_m)
        # A layout that claims more rows than there are must not read past them.
        index = torch.where(index < packed.shape[0], index, -1)
        return padding.gather(packed, index.flatten(), fill).unflatten(0, index.shape)

    def pack(self, padded: Tensor, total_m: int, *, fill: float = 0) -> Tensor:
        """Collect the active rows of padded groups one after another.

        Args:
            padded: (G, max_m, ...), on the layout's device.
            total_m: number of rows of the result.
            fill: value of the tail.

        Returns:
            (total_m, ...) of the dtype of `padded`, a copy; differentiable.

        Raises:
            TypeError, ValueError: `padded` is no dense tensor of G groups on the layout's device, or has another
                number of slots than the layout, `total_m` is no extent, or `fill` no number, as for `pad`.
        """
        checks.rows("padded", padded, 2, self.device)
        checks.fill(fill, padded.dtype)
        if padded.shape[0] != self.G:
            raise ValueError(f"padded holds {padded.shape[0]} groups, the layout has G = {self.G}")
        if self.max_m is not None and padded.shape[1] != self.max_m:
            raise ValueError(f"padded holds {padded.shape[1]} slots a group, the layout has max_m = {self.max_m}")
        return padding.gather(padded.flatten(0, 1), self.pack_indices(total_m, padded.shape[1]), fill)

    def _range(self, count: int) -> Tensor:
        """The numbers of rows or slots."""
        refuse_dtensors("a conversion of GroupLayout that counts rows or slots", **{self.kind: self.source})
        return torch.arange(count, dtype=self.dtype, device=self.device)

    def _slots(self, max_m: int | None) -> int:
        max_m = self.max_m if max_m is None else max_m
        if max_m is None:
            raise ValueError(f"max_m is needed, as a layout of {self.kind} does not hold the number of slots")
        checks.extent("max_m", max_m)
        return max_m

    # ---- values, on request

    def validate(self, total_m: int | None = None, max_m: int | None = None) -> GroupLayout:
        """Check the values and return the layout. The description is copied to the host, so this waits for the device.

        Args:
            total_m: rows that the packed tensor has; the groups must fit into them.
            max_m: slots that the padded tensor has; each group must fit into them.

        Raises:
            ValueError: a value is wrong; the message has the description's name, the index and the value.
        """
        for name, extent in (("total_m", total_m), ("max_m", max_m)):
            if extent is not None:
                checks.extent(name, extent)
        sizes = checks.sizes_of(self.kind, self.source.detach().cpu().long(), self.G)
        limit = self.max_m if max_m is None else max_m
        checks.fits(self.kind, sizes, self.dtype, total_m, limit)
        return self

    def __repr__(self) -> str:
        # Printing values waits for a GPU, and fake or meta tensors have none: show them only on the CPU.
        shown = ""
        if type(self.source) is Tensor and self.device.type == "cpu" and self.G <= _MAX_SHOWN:
            shown = f", sizes={self.sizes.tolist()}"
        slots = "" if self.max_m is None else f", max_m={self.max_m}"
        return f"GroupLayout({self.kind}, G={self.G}{slots}{shown}, {self.dtype}, {self.device})"


def padding_waste(sizes: GroupLayout | Tensor | Sequence[int]) -> float:
    """The share of extra rows that padding every group to the largest one adds: G * max / sum - 1.

    Reads values on the host, so it waits for their device: for reports, not for hot paths.

    Args:
        sizes: rows of each group, as a layout, a (G,) tensor or a sequence of ints.

    Returns:
        0.0 for equal groups, and without rows; G - 1 when all rows are in one group.

    Raises:
        ValueError: a size is negative.
    """
    if isinstance(sizes, GroupLayout):
        sizes = sizes.sizes
    rows = [int(m) for m in (sizes.tolist() if isinstance(sizes, Tensor) else sizes)]
    for i, m in enumerate(rows):
        if m < 0:
            raise ValueError(f"sizes[{i}] = {m}: a group cannot have fewer than 0 rows")
    total = sum(rows)
    return len(rows) * max(rows) / total - 1 if total else 0.0


def _names_group(ids: Tensor, G: int) -> Tensor:
    """Whether each id names one of the G groups."""
    return (ids >= 0) & (ids < G)


def _count(ids: Tensor, G: int) -> Tensor:
    """Rows of each group."""
    # An id that names no group counts in a bin that is cut off: a scatter to it would trap on a GPU.
    bins = torch.where(_names_group(ids, G), ids, G).long()
    return ids.new_zeros(G + 1).scatter_add_(0, bins, torch.ones_like(ids))[:G]
