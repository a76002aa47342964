"""The memory of one watched matrix: what kernels find there, and what Python code sees in the meantime.

Between two accesses by kernels, a matrix of floating-point numbers shows its own elements in a random order, and an
output its canaries. So a sum that torch computes during a run is wrong, however it gets into a kernel.
"""

from __future__ import annotations

import functools
import os

import numpy as np
import torch

from course_kernels.testing.canaries import CANARY

MARGIN = 64  # elements around each matrix; a tile that sticks out further counts as outside of everything


class Region:
    """One watched matrix: its buffer's addresses, its own extents and strides in elements.

    Attributes:
        overwritten: whether Python code has put other numbers in the place of what kernels stored.
    """

    def __init__(self, name: str, view: torch.Tensor, buffer: torch.Tensor, output: bool):
        self.name, self.view, self.buffer, self.output = name, view, buffer, output
        self.low = buffer.data_ptr()
        self.high = self.low + buffer.numel() * buffer.element_size()
        self.itemsize = buffer.element_size()
        self.base = view.data_ptr()
        shape, strides = tuple(view.shape), tuple(view.stride())
        self.shape = (1,) * (2 - len(shape)) + shape
        self.strides = (0,) * (2 - len(shape)) + strides
        # The memory as integers; its content for kernels, and for Python code. Both are empty without an interpreter.
        self._memory = self._known = self._shown = np.empty(0, dtype=np.int8)
        self._touched = False
        self.overwritten = False
        if output:
            self.counts = np.zeros(buffer.numel(), dtype=np.int32)
            self.writers = np.full(buffer.numel(), -1, dtype=np.int32)

    def remember(self) -> None:
        """Note the memory's content, on the CPU, as what a kernel may find there, and hide it from Python code."""
        self._memory = self.buffer.view(CANARY[self.buffer.dtype][0]).numpy()
        self._known = self._memory.copy()
        self._shown = self._known.copy()
        if self.buffer.dtype.is_floating_point:
            places = torch.arange(len(self._known), dtype=torch.int64, device="cpu")
            places = places.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset())
            places = places[~self.view.float().isnan()]
            order = torch.Generator("cpu").manual_seed(int.from_bytes(os.urandom(7), "little"))
            other = places[torch.randperm(len(places), generator=order, device="cpu")]
            self._shown[places.numpy()] = self._known[other.numpy()]
            self._memory[:] = self._shown

    def show(self, elements: np.ndarray) -> int:
        """Let a kernel find its content of some elements. Returns how many Python code had changed.

        They are changed back, but for zeros: these are as good as laid out.
        """
        changed = self._memory[elements] != self._shown[elements]
        zeros = elements[changed & (self._memory[elements] == 0)]
        self._known[zeros] = self._shown[zeros] = 0
        self._memory[elements] = self._known[elements]
        return int(changed.sum()) - zeros.size

    def show_one(self, element: int) -> bool:
        """As `show`, of one element inside the matrix; False, and nothing is done, if it is outside or was changed."""
        if not self._inside[element] or self._memory[element] != self._shown[element]:
            return False
        self._memory[element] = self._known[element]
        return True

    def hide(self, elements: np.ndarray | slice) -> None:
        """After an access of a kernel's: note what it has stored, and let Python code see the rest again."""
        self._touched = True
        self._known[elements] = self._memory[elements]
        if not self.buffer.dtype.is_floating_point:
            self._shown[elements] = self._memory[elements]
        self._memory[elements] = self._shown[elements]

    def disclose(self) -> None:
        """After the run: let the memory hold what kernels left there, or what Python code has put there since."""
        changed = self._memory != self._shown
        if self.output and self._known.size:
            self.overwritten = bool((changed & (self._memory != 0) & (self.counts > 0)).any())
        self._memory[:] = np.where(changed, self._memory, self._known)

    @property
    def unread(self) -> bool:
        """True for an input of floating-point numbers, with a number in it, that no kernel has accessed."""
        return bool(self._known.size and not self.output and not self._touched
                    and self.buffer.dtype.is_floating_point and self.view.numel())  # fmt: skip

    @functools.cached_property
    def _inside(self) -> np.ndarray:
        """Whether each element of the buffer is one of the matrix."""
        return self.places(self.low + self.itemsize * np.arange(self.buffer.numel()))[2]

    def places(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, column, whether that is inside the matrix) of addresses in the buffer."""
        offset = (addresses.astype(np.int64) - self.base) // self.itemsize
        (rows, cols), (down, across) = self.shape, self.strides
        if down == 0:
            row, col, gap = np.zeros_like(offset), offset // across, offset % across
        elif down >= across:
            row, col, gap = _split(offset, down, across, cols)
        else:
            col, row, gap = _split(offset, across, down, rows)
        inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols) & (gap == 0)
        return row, col, inside


def _split(offset: np.ndarray, leading: int, step: int, extent: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets in elements as (line, position in it, distance from an element) of a matrix with a leading dimension."""
    line = offset // leading
    rest = offset - line * leading
    if leading >= extent * step + 2 * MARGIN:
        # In the margin in front of a line a position is negative, and not at the far end of the line before.
        front = rest >= leading - MARGIN
        line, rest = line + front, rest - front * leading
    return line, rest // step, rest % step
