"""Launch a compiled Triton kernel again, with other addresses and another total, at the least host time.

Triton's own path inspects each argument and encodes each descriptor at every launch: 16 µs for the packed kernels,
more than a whole call of other libraries. This module keeps the argument list that Triton's launcher received, and
changes only addresses, totals and their descriptors. It uses Triton's internals. Where these differ from what it
expects, and while a profiler listens to launches, it takes Triton's own path.
"""

from __future__ import annotations

import copy
import threading
import types

import torch

_MAX_DESCRIPTORS = 256


class Address:
    """An address in place of a descriptor's base tensor, for the launcher. A kept descriptor with a tensor in it would
    keep the tensor's memory."""

    def __init__(self, dtype):
        self.value, self.dtype = 0, dtype

    def data_ptr(self) -> int:
        """The address."""
        return self.value


class Relaunch:
    """A compiled kernel with its arguments.

    Args:
        compiled: what Triton returned from the first launch.
        programs: number of programs of that launch, whose grid has one axis.
        arguments: all of the kernel's arguments in order, those of compile time included. Descriptors have an
            ``Address`` for a base.
        sources: for each argument that is an address or a descriptor, its position and the index of its address in
            the list that is given to each call.
        totals: position of each argument that holds a call's total: None for the number itself, else the axis of a
            descriptor that it bounds.
    """

    def __init__(
        self, compiled, programs: int, arguments: list, sources: dict[int, int], totals: dict[int, int | None]
    ):
        self._arguments, self._sources, self._totals = arguments, sources, totals
        self._descriptors = {i: arguments[i] for i in sources if hasattr(arguments[i], "base")}
        self._compiled = compiled
        self._hooks = None
        self._lock = threading.Lock()  # no other thread may change arguments before the launch has read them
        try:
            self._short = self._shortcut(programs)
        except (AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError):
            self._short = None

    def __call__(self, addresses: list[int], stream: int, programs: int, total: int) -> None:
        """Launch on a stream, with ``addresses`` and ``total`` at the positions of ``sources`` and ``totals``."""
        hooks = self._hooks
        with self._lock:
            if self._short is not None and not hooks.launch_enter_hook.calls and not hooks.launch_exit_hook.calls:
                self._short(addresses, stream, programs, total)
            else:
                self._long(addresses, stream, programs, total)

    def _long(self, addresses, stream, programs, total):
        """Launch through Triton's own path."""
        make_context_current()
        for position, source in self._sources.items():
            if position in self._descriptors:
                self._descriptors[position].base.value = addresses[source]
            else:
                self._arguments[position] = addresses[source]
        for position, axis in self._totals.items():
            if axis is None:
                self._arguments[position] = total
            else:
                self._descriptors[position].shape[axis] = total
        self._compiled[(programs, 1, 1)](*self._arguments, stream=stream)

    def _shortcut(self, programs):
        """A function that calls Triton's C launcher with a kept argument list, or None."""
        from triton import knobs

        self._hooks = knobs.runtime
        hooks = (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
        if not all(isinstance(hook.calls, list) for hook in hooks):
            return None
        launcher, seen = self._compiled.run, []
        if launcher.global_scratch_size:
            return None

        # Let the launcher, and what it wraps around the C function, prepare a call of a function that records its
        # arguments.
        def record(*args):
            seen.append(args)

        recording = copy.copy(launcher)
        if self._descriptors:
            wrapper = launcher.launch
            names = wrapper.__code__.co_freevars
            cells = dict(zip(names, (cell.cell_contents for cell in wrapper.__closure__)))
            raw, encode = cells["launcher"], wrapper.__globals__["make_tensordesc_arg"]
            metadata = dict(zip(sorted(self._descriptors), cells["tensordesc_meta"], strict=True))
            if sorted(self._descriptors) != sorted(cells["tensordesc_indices"]):
                return None
            recorder = tuple(types.CellType(record if name == "launcher" else cells[name]) for name in names)
            recording.launch = types.FunctionType(
                wrapper.__code__, wrapper.__globals__, wrapper.__name__, None, recorder
            )
        else:  # without descriptors Triton wraps nothing
            raw, recording.launch, encode, metadata = launcher.launch, record, None, {}
        changing = [i for i in (*self._sources, *self._totals) if i not in self._descriptors]
        marks = {i: object() for i in changing}
        stream_mark, grid_mark = object(), _Mark(programs)
        marked = [marks.get(i, value) for i, value in enumerate(self._arguments)]
        for descriptor in self._descriptors.values():
            descriptor.base.value = 0x10000
        recording(
            grid_mark, 1, 1, stream_mark, self._compiled.function, self._compiled.packed_metadata, None, None, None,
            *marked,
        )  # fmt: skip
        (call,) = seen
        # Kernel arguments come last: one by one, or as a list of their own.
        nested = isinstance(call[-1], (list, tuple))
        fixed, tail = (list(call[:-1]), list(call[-1])) if nested else (list(call), None)
        values = tail if nested else fixed
        pointers = [(_position(values, marks[i]), source) for i, source in self._sources.items() if i in marks]
        numbers = [_position(values, marks[i]) for i in self._totals if i in marks]
        maps = [i for i, value in enumerate(values) if type(value).__name__ == "PyCUtensorMap"]
        if len(maps) != len(self._descriptors):
            return None
        # After each map come the descriptor's extents.
        encoded = [
            (at, self._sources[i], self._descriptors[i], metadata[i], self._totals.get(i), {})
            for at, i in zip(maps, sorted(self._descriptors), strict=True)
        ]
        stream_at, grid_at = _position(fixed, stream_mark), _position(fixed, grid_mark)

        def launch(addresses, stream, programs, total):
            for at, source in pointers:
                values[at] = addresses[source]
            for at in numbers:
                values[at] = total
            for at, source, descriptor, meta, axis, known in encoded:
                address = addresses[source]
                form = address if axis is None else (address, total)
                found = known.get(form)
                if found is None:
                    make_context_current()
                    if len(known) >= _MAX_DESCRIPTORS:
                        del known[next(iter(known))]  # the oldest
                    descriptor.base.value = address
                    if axis is not None:
                        descriptor.shape[axis] = total
                    found = known[form] = encode(descriptor, meta)[0]
                values[at] = found
                if axis is not None:
                    values[at + 1 + axis] = total
            fixed[grid_at], fixed[stream_at] = programs, stream
            if nested:
                raw(*fixed, tail)
            else:
                raw(*fixed)

        return launch


def make_context_current() -> None:
    """Make the current GPU's context current in this thread, as encoding a TMA descriptor needs: that is a call of the
    driver. A call of CUDA's runtime makes it current, but a thread may have made none, such as that of a backward."""
    torch.cuda.is_current_stream_capturing()  # the least call; a capture allows it


class _Mark(int):
    """An int to be found by identity: an equal int is another object."""


def _position(values: list, mark: object) -> int:
    """Find the mark by identity: some arguments cannot be compared."""
    for i, value in enumerate(values):
        if value is mark:
            return i
    raise ValueError("the launcher was not given an argument that it should have been given")
