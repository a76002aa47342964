"""Probes that record a kernel's reads and writes, element by element, while Triton's interpreter runs it.

`Watch` gives an exercise its matrices, inside larger buffers full of canaries, and looks at every load and store: an
access outside the matrices is recorded with the program, the line and the place, and not carried out. An atomic update
counts as a store, and is recorded as an "atomic" event, too. A kernel reads what was laid out or what kernels stored:
where Python code has put another number since, the access is a "changed" event, and the number is taken back. Python
code sees other numbers there, see `regions`: what it computes from them is wrong. An "unread" event names the inputs of
which no kernel has read anything. The interpreter has no public hook: its builder's masked load and store, its atomics,
the pointers of a descriptor and the launch are wrapped, and a test fails when Triton changes them.
On a GPU only the canaries are left, which the judging process looks at in any case.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Sequence

import numpy as np
import torch

from course_kernels import runtime
from course_kernels.testing.canaries import poisoned
from gemm_course.runner import masks
from gemm_course.runner.interpreter import ACCESSES, check_handles
from gemm_course.runner.regions import MARGIN, Region

_MAX_EVENTS = 40
_APART = 1 << 17  # bytes on both sides of a matrix; untouched, so they cost addresses and no memory
_UNDEFINED = 0x5A5A5A5A  # a number that a load gives where it is not defined


def _pitch(addresses: np.ndarray, region: Region) -> list[int] | None:
    """The elements between the rows of a block of pointers, and between those of the matrix; None if equal."""
    stride, across = region.strides
    if addresses.ndim != 2 or min(addresses.shape) < 2 or across != 1 or not stride:
        return None
    first, right, below = (int(each) for each in (addresses[0, 0], addresses[0, 1], addresses[1, 0]))
    if not region.low <= first < region.high:
        return None
    step, pitch = sorted((each - first) // region.itemsize for each in (right, below))
    return [pitch, stride] if step == 1 and pitch != stride else None


def _apart(view: torch.Tensor) -> torch.Tensor:
    """The view in memory of its own, far from all other, on a CPU.

    Pointers that leave one matrix would otherwise reach the next one, depending on where the process has put it.
    """
    if view.device.type != "cpu":
        return view
    content = torch.empty(0, dtype=torch.uint8, device="cpu").set_(view.untyped_storage())
    room = np.empty(2 * _APART + 64 + len(content), dtype=np.uint8)
    start = _APART + -(room.ctypes.data + _APART) % 64  # aligned as torch aligns its own
    own = torch.from_numpy(room[start : start + len(content)]).copy_(content)
    return own.view(view.dtype).as_strided(view.shape, view.stride(), view.storage_offset())


class Watch:
    """The matrices of one run, and what happened to them. A context manager; use it around the launch.

    Lines in events are those of the learner's source, which is at `path`.
    """

    def __init__(self, path: str = ""):
        self._path = path
        self._regions: list[Region] = []
        self._events: dict[tuple, dict] = {}
        self._undo: list[tuple] = []
        self._storing_programs: set[tuple] = set()  # programs that have stored something
        self._without_other: list[range] | None = None  # lines of loads; None until they are needed
        self._by_descriptor: set[str] = set()
        self._descriptors_pointers = None  # those that a descriptor has made for its next access
        self._descriptors_place = 0, ()  # its address, and the coordinates of that access
        self._touched: list[tuple[Region, np.ndarray | slice]] = []  # elements of the next access
        self.launched: list = []  # the kernel of each launch; empty on a GPU
        self.device = runtime.device()

    # ---- matrices

    def matrix(self, name: str, values: torch.Tensor, layout: str = "row", room: int = 0) -> torch.Tensor:
        """A watched input: a view in a buffer of NaN (integers: 0x5A…), on the device of the exercise.

        `values` are (rows, columns) or (n,), of any dtype that has a canary. `layout`, "row" or "col", says which
        stride is 1; the other exceeds the extent by twice the margin and by `room`, so that matrices differ in it.
        """
        return self._add(name, values.to(self.device), layout, room, output=False)

    def output(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, layout: str = "row", room: int = 0
    ) -> torch.Tensor:
        """A watched output, full of canaries like the buffer around it. Arguments as for `matrix`."""
        return self._add(name, torch.empty(tuple(shape), dtype=dtype, device=self.device), layout, room, output=True)

    def table(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """A watched one-dimensional input, such as a table of addresses."""
        return self.matrix(name, values)

    def packed(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """A watched input without gaps between its rows, (rows, columns): margins only before and after all of it."""
        return self._flat(name, values.to(self.device), output=False)

    def packed_output(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A watched output without gaps between its rows, for kernels that cannot take a leading dimension."""
        return self._flat(name, torch.empty(tuple(shape), dtype=dtype, device=self.device), output=True)

    def group_tables(self, ends: Sequence[int], groups: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The watched tables of a launch over some groups: the ends of all groups, and the groups to compute."""
        offs = self.table("offs", torch.tensor(ends, dtype=torch.int32))
        return offs, self.table("the table of groups", torch.tensor(groups, dtype=torch.int32))

    def _add(self, name, values, layout, room, output) -> torch.Tensor:
        *lines, width = values.shape[::-1] if layout == "col" else values.shape
        view = self._poisoned((*lines, width + room), values.dtype, MARGIN)[..., :width]
        return self._watch(name, view.mT if layout == "col" else view, values, output)

    def _flat(self, name, values, output) -> torch.Tensor:
        count, margin = values.numel(), MARGIN * max(values.shape[-1], 1)
        view = self._poisoned((max(count, 1),), values.dtype, margin)[:count].view(values.shape)
        return self._watch(name, view, values, output)

    def _poisoned(self, shape, dtype, margin) -> torch.Tensor:
        return _apart(poisoned(shape, dtype, margin, device=self.device)[0])

    def _watch(self, name, view, values, output) -> torch.Tensor:
        buffer = torch.empty(0, dtype=view.dtype, device=self.device).set_(view.untyped_storage())
        if not output:
            view.copy_(values)
        self._regions.append(Region(name, view, buffer, output))
        if self._undo:  # laid out during the run, as 04b lays out tables that were made there
            self._regions[-1].remember()
        return view

    def holds(self, low: int, high: int) -> bool:
        """True if the bytes between two addresses are those of one matrix and its surroundings."""
        return any(each.low <= low and high <= each.high for each in self._regions)

    def through_descriptors(self, *names: str) -> None:
        """Record as a "pointer" event every access to these matrices by pointers in place of a descriptor."""
        self._by_descriptor.update(names)

    # ---- the interpreter

    def __enter__(self) -> Watch:
        if runtime.mode() != "interpreter":
            return self
        from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorDescHandle

        for region in self._regions:
            region.remember()
        own = [getattr(InterpreterBuilder, name) for name in ACCESSES]
        load, store, update, exchange = (getattr(each, "genuine", each) for each in own)
        pointers_of, execute = TensorDescHandle.materialize_pointers, InterpretedFunction.run

        def masked_load(builder, ptrs, mask, other, *rest, **options):
            check_handles(ptrs, mask, other)
            if self._look_at_one(ptrs, mask):
                return self._carry_out(load, builder, ptrs, mask, other, *rest, **options)
            allowed, handle = self._look("load", builder, ptrs, mask)
            result = self._carry_out(load, builder, ptrs, handle, other, *rest, **options)
            # The interpreter takes a single `other=0` for none at all, so of one element the source says which it is.
            defined = other is not None or (np.size(ptrs.data) == 1 and not self._lacks_other())
            if not allowed.all() or not (defined or np.asarray(mask.data).all()):
                self._spoil(builder, ptrs, result, np.asarray(mask.data), allowed, defined)
            return result

        def masked_store(builder, ptrs, value, mask, *rest, **options):
            check_handles(value)
            _, handle = self._look("store", builder, ptrs, mask)
            return self._carry_out(store, builder, ptrs, value, handle, *rest, **options)

        def atomic_rmw(builder, operation, ptrs, value, mask, *rest, **options):
            check_handles(value)
            _, handle = self._look("atomic", builder, ptrs, mask)
            return self._carry_out(update, builder, operation, ptrs, value, handle, *rest, **options)

        def atomic_cas(builder, ptrs, *rest, **options):
            check_handles(*rest[:2])
            # It has no mask that could keep it from a place outside: it gets another place there.
            allowed, _ = self._look("atomic", builder, ptrs, np.ones(np.shape(ptrs.data), dtype=bool))
            aside = np.zeros(1, dtype=np.int64)
            data = np.where(allowed.reshape(np.shape(ptrs.data)), ptrs.data, np.uint64(aside.ctypes.data))
            return self._carry_out(exchange, builder, type(ptrs)(data, ptrs.dtype), *rest, **options)

        def materialize_pointers(descriptor, offsets):
            self._descriptors_pointers, mask = pointers_of(descriptor, offsets)
            self._descriptors_place = int(descriptor.base.data.item()), [int(each.data.item()) for each in offsets]
            return self._descriptors_pointers, mask

        def launch(kernel, *arguments, **options):
            self.launched.append(kernel)
            return execute(kernel, *arguments, **options)

        ours = (masked_load, masked_store, atomic_rmw, atomic_cas)
        of_builder = [(InterpreterBuilder, *each) for each in zip(ACCESSES, ours)]
        of_builder.append((TensorDescHandle, "materialize_pointers", materialize_pointers))
        for owner, name, wrapper in (*of_builder, (InterpretedFunction, "run", launch)):
            self._undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, wrapper)
        return self

    def __exit__(self, *_) -> None:
        while self._undo:
            setattr(*self._undo.pop())
        for region in self._regions:
            region.disclose()

    def _look_at_one(self, ptrs, mask) -> bool:
        """True for a load of one element of a matrix of which nothing is to be recorded: most loads of a walk over
        tiles, for which `_look` takes as long as all the rest of a load. False, and nothing is done, for any other."""
        active = np.asarray(mask.data)
        if ptrs.data.size != 1 or active.size != 1 or not active.item() or self._by_descriptor:
            return False
        address = ptrs.data.item()
        for region in self._regions:
            if region.low <= address < region.high:
                element = (address - region.low) // region.itemsize
                self._touched = [(region, slice(element, element + 1))]
                return region.show_one(element)
        return False

    def _look(self, kind, builder, ptrs, mask):
        """Record one access; returns which lanes are allowed, and a mask that leaves out the others.

        A descriptor's access arrives here, too, with its bounds as the mask: a plain array before Triton 3.9.
        """
        check_handles(ptrs, mask)
        by_descriptor = ptrs is self._descriptors_pointers
        addresses = np.atleast_1d(np.asarray(ptrs.data))
        active = np.broadcast_to(np.asarray(mask.data, dtype=bool), addresses.shape)
        if kind != "load" and active.any():
            self._storing_programs.add(tuple(builder.grid_idx))
        unknown, good = active.copy(), np.zeros_like(active)
        self._touched = []
        atomic, kind = kind == "atomic", "load" if kind == "load" else "store"
        if by_descriptor and kind == "load" and not active.any():
            self._look_beyond(builder, active.size)
        lowest, highest = int(addresses.min()), int(addresses.max())
        for region in self._regions:
            if highest < region.low or region.high <= lowest:
                continue
            here = unknown & (addresses >= region.low) & (addresses < region.high)
            if not here.any():
                continue
            unknown &= ~here
            if self._by_descriptor and not by_descriptor and region.name in self._by_descriptor:
                self._event("pointer", builder, region, None, int(here.sum()))
            if atomic:
                self._event("atomic", builder, region, None, int(here.sum()))
            element = ((addresses[here] - region.low) // region.itemsize).astype(np.int64)
            if (atomic or kind == "load") and (count := region.show(element)):
                self._event("changed", builder, region, None, count)
            self._touched.append((region, element))
            row, col, inside = region.places(addresses)
            good |= here & inside
            outside = here & ~inside
            if outside.any():
                first = tuple(np.argwhere(outside)[0])
                place = int(row[first]), int(col[first])
                far = int(row[outside].max()), int(col[outside].max())
                self._event(kind, builder, region, place, int(outside.sum()), far, _pitch(addresses, region))
            if kind == "store" and region.output:
                np.add.at(region.counts, element, 1)
                region.writers[element] = builder.grid_idx[0]
        if unknown.any() and self._regions:
            # Tables and other plain tensors of an exercise are watched, too: the rest belongs to no matrix.
            self._event(kind, builder, None, None, int(unknown.sum()))
        if (good == active).all():
            return np.ones_like(active), mask
        good_mask = good.reshape(np.shape(ptrs.data))
        return good | ~active, good_mask if isinstance(mask, np.ndarray) else type(mask)(good_mask, mask.dtype)

    def _carry_out(self, access, *arguments, **options):
        """Carry out the access that `_look` saw last; returns the interpreter's result."""
        touched = self._touched
        try:
            return access(*arguments, **options)
        finally:
            for region, elements in touched:
                region.hide(elements)

    def _look_beyond(self, builder, count) -> None:
        """Record a descriptor's load of nothing but zeros, as a "beyond" event of a `through_descriptors` matrix."""
        base, place = self._descriptors_place
        region = next((each for each in self._regions if each.low <= base < each.high), None)
        if region is not None and region.name in self._by_descriptor and len(place) == 2:
            self._event("beyond", builder, region, place, count, place)

    def _lacks_other(self) -> bool:
        """True if the line that is being executed has a load with a mask and without ``other``."""
        if self._without_other is None:
            self._without_other = masks.loads_without_other("".join(linecache.getlines(self._path)))
        line = self.line(3)
        return any(line in each for each in self._without_other)

    def _spoil(self, builder, ptrs, result, mask, allowed, defined) -> None:
        """Put NaN where elements were read outside of a matrix, or masked off without a value; for a single integer
        without a value, a large number."""
        data = result.data
        bad = ~allowed.reshape(data.shape) if not allowed.all() else np.zeros(data.shape, dtype=bool)
        if not defined:
            off = ~np.broadcast_to(mask, data.shape)
            if off.any():
                address = int(np.ravel(ptrs.data)[0])
                region = next((each for each in self._regions if each.low <= address < each.high), None)
                self._event("undefined", builder, region, None, int(off.sum()))
            bad = bad | off
            if data.size == 1 and data.dtype.kind == "i" and data.dtype.itemsize >= 4 and off.any():
                data[...] = _UNDEFINED
        if data.dtype.kind == "f":
            data[bad] = np.nan

    def note(self, kind: str, what: str, **more) -> None:
        """Record an event of the answer's Python code, once for each of its lines."""
        line = self.line(2)
        if len(self._events) < _MAX_EVENTS:
            self._events.setdefault((kind, what, line), {"kind": kind, "what": what, "line": line, **more})

    def line(self, depth: int = 1) -> int:
        """The line of the learner's source that is being executed; 0 outside of it."""
        frame = sys._getframe(depth)
        while frame is not None and frame.f_code.co_filename != self._path:
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0

    def _event(self, kind, builder, region, place, count, far=(0, 0), pitch=None) -> None:
        line = self.line(3)
        name = region.name if region is not None else None
        side = None
        if place is not None:
            (row, col), (rows, cols) = place, region.shape
            side = "rows" if not 0 <= row < rows else "columns" if not 0 <= col < cols else "gap"
        if any(other[0] == kind and other[2] == line and other[1] != name for other in self._events):
            pitch = None  # the access left another matrix before, and its pointers have the rows of that one
        key = (kind, name, line, side)
        if key in self._events:
            event = self._events[key]
            event["count"] += count
            event["far"] = [max(pair) for pair in zip(event["far"], far)]
        elif len(self._events) < _MAX_EVENTS:
            self._events[key] = {
                "kind": kind, "matrix": name, "line": line, "side": side, "count": count, "far": list(far),
                "place": list(place) if place is not None else None,
                "shape": list(region.shape) if region is not None else None,
                "program": [int(index) for index in builder.grid_idx], "pitch": pitch,
            }  # fmt: skip

    # ---- what happened

    def programs(self) -> tuple[int, int] | None:
        """The programs of the last launch, and how many of all programs stored something; None if nothing says so."""
        if runtime.mode() != "interpreter":
            return None
        from triton.runtime.interpreter import interpreter_builder

        grid = getattr(interpreter_builder, "grid_dim", None)  # none before the first launch
        return None if grid is None else (int(np.prod(grid)), len(self._storing_programs))

    def layout(self) -> dict:
        """The form of each output; each matrix's address, that of its buffer, and the buffer's length in bytes.

        The judge wants it from before an answer is loaded, which could claim anything.
        """
        outputs = [
            {
                "name": each.name, "dtype": str(each.view.dtype).removeprefix("torch."),
                "elements": each.buffer.numel(), "shape": list(each.view.shape), "strides": list(each.view.stride()),
                "offset": each.view.storage_offset(),
            }
            for each in self._regions if each.output
        ]  # fmt: skip
        return {"outputs": outputs, "addresses": {r.name: [r.base, r.low, r.high - r.low] for r in self._regions}}

    def report(self) -> dict:
        """Events, and every output's memory with how often it was stored and by which program, as values to be sent."""
        outputs = [
            {
                "buffer": each.buffer, "counts": torch.from_numpy(each.counts),
                "writers": torch.from_numpy(each.writers),
            }
            for each in self._regions if each.output
        ]  # fmt: skip
        events = list(self._events.values())
        for each in self._regions:
            if each.overwritten:
                events.append({"kind": "changed", "matrix": each.name})
        if unread := [each.name for each in self._regions if each.unread]:
            events.append({"kind": "unread", "what": ", ".join(unread)})
        return {"events": events, "outputs": outputs}
