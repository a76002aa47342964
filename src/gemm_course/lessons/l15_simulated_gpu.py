"""A simulated GPU to practise measuring on: a queue, an L2 cache, a clock that drifts. It computes nothing.

Its constants are round numbers near an H200's. They are assumptions, not measurements, and so are its times. It shows
how methods of measuring differ. The same seed gives the same times on every machine.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

PEAK_TFLOPS, MEMORY_TB_S, L2_TB_S = 800.0, 4.0, 12.0
L2_BYTES = 60 * 10**6
LAUNCH_US = 3.0  # of the host, to enqueue one kernel or one graph
SYNC_US = 10.0  # of the host, from the end of the queue to the return of synchronize()
START_US = 2.0  # of the device, from one kernel to the next
GRAPH_START_US = 1.0  # the same inside a graph
LOAD_US = 20_000.0  # of the host, when a kernel is launched for the first time: compiling, or loading code
OVERLAP_LOST = 0.25  # share of the shorter of arithmetic and traffic that the longer one does not hide
# At a demand of 1 (every tensor core busy, every bit changing) the power limit takes this share of the clock at once,
POWER_DROOP = 0.45
POWER_FREE = 0.6  # though nothing below this demand,
HEAT_DROOP = 0.08  # and heat takes this share in the long run, at this pace.
HEAT_US = 10_000.0
NOISE, HICCUP, HICCUP_CHANCE = 0.02, 6.0, 0.02  # jitter of a kernel; now and then another process disturbs it
_LINE = 2**18  # bytes; whole blocks of this size come and go in the cache


@dataclass(frozen=True, eq=False)
class Array:
    """A matrix of 16-bit numbers on the simulated GPU: a shape and a kind of content, but no numbers."""

    shape: tuple[int, ...]
    activity: float  # share of bits that change between elements: 1 for random numbers, 0 for zeros

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return 2 * math.prod(self.shape)


class Span(NamedTuple):
    """Busy time of the host or the device."""

    lane: str  # "host" or "device"
    name: str  # of the kernel, or "wait"
    start: float  # µs
    end: float  # µs


class _Kernel(NamedTuple):
    """The arguments of `SimulatedGpu.launch`."""

    name: str
    flops: float
    reads: Sequence[Array]
    writes: Sequence[Array]
    efficiency: float
    streaming: float


@dataclass(frozen=True)
class Event:
    """A mark in the queue; the device notes the time when it arrives there."""

    gpu: SimulatedGpu
    at: float

    def until(self, other: Event) -> float:
        """Microseconds on the device from this event to another, once the host has waited for both."""
        if max(self.at, other.at) > self.gpu.now:
            raise RuntimeError("an event has not happened yet: synchronize() before you ask for its time")
        return other.at - self.at


class SimulatedGpu:
    """A host and a device with clocks of virtual time: a launch returns at once, the device works through its queue.

    Attributes:
        now: the host's clock in microseconds.
        spans: busy times of host and device, for figures.
    """

    def __init__(self, seed: int = 0):
        self.now = 0.0
        self.spans: list[Span] = []
        self._random = random.Random(seed)
        self._free = 0.0  # when the queue is empty
        self._heat, self._heat_at = 0.0, 0.0
        self._cache: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._arrays: list[Array] = []  # kept, so that no two of them have the same id
        self._loaded: set[str] = set()
        self._capturing: list[_Kernel] | None = None

    # ---- memory

    def zeros(self, *shape: int) -> Array:
        """An array of zeros."""
        return self._array(shape, 0.0)

    def randn(self, *shape: int) -> Array:
        """An array of random normal numbers."""
        return self._array(shape, 1.0)

    def _array(self, shape: Sequence[int], activity: float) -> Array:
        self._arrays.append(Array(tuple(shape), activity))
        return self._arrays[-1]

    def _missed(self, arrays: Sequence[Array]) -> tuple[int, int]:
        """Bytes that come from memory and from the cache, which keeps the most recent ones."""
        missed = hit = 0
        for array in arrays:
            for line in range(-(-array.nbytes // _LINE)):
                size = min(_LINE, array.nbytes - line * _LINE)
                if (key := (id(array), line)) in self._cache:
                    self._cache.move_to_end(key)
                    hit += size
                else:
                    self._cache[key] = None
                    missed += size
                    if len(self._cache) * _LINE > L2_BYTES:
                        self._cache.popitem(last=False)
        return missed, hit

    # ---- work

    def launch(
        self, name: str, *, flops: float = 0, reads: Sequence[Array] = (), writes: Sequence[Array] = (),
        efficiency: float = 0.9, streaming: float = 0.9,
    ) -> None:  # fmt: skip
        """Enqueue a kernel; the host goes on. The first launch of a name loads the kernel.

        Args:
            reads, writes: whole arrays. Reads may come from the cache; writes go to memory, and into the cache.
            efficiency: share of the peak that its arithmetic alone would reach.
            streaming: share of the memory's bandwidth that its loads alone would reach; a high one takes many loads in
                flight. Loads that the cache answers need fewer, and always reach its bandwidth.
        """
        kernel = _Kernel(name, flops, reads, writes, efficiency, streaming)
        if self._capturing is not None:
            self._capturing.append(kernel)
            return
        self._host(name, LAUNCH_US + (0.0 if name in self._loaded else LOAD_US))
        self._loaded.add(name)
        self._run(kernel, START_US)

    def graph(self, function: Callable[[], object]) -> Callable[[], None]:
        """Capture the launches of one call; return a function that enqueues all of them at the host's cost of one."""
        self._capturing = kernels = []
        try:
            function()
        finally:
            self._capturing = None
        self._loaded.update(kernel.name for kernel in kernels)

        def replay() -> None:
            self._host("graph", LAUNCH_US)
            for i, kernel in enumerate(kernels):
                self._run(kernel, GRAPH_START_US if i else START_US)

        return replay

    def flush_l2(self) -> None:
        """Enqueue a kernel that overwrites the cache."""
        self._flush = getattr(self, "_flush", None) or self.zeros(L2_BYTES)  # 2 bytes an element: twice the cache
        self._loaded.add("flush")
        self.launch("flush", writes=[self._flush])

    def event(self) -> Event:
        """Enqueue a mark in the queue."""
        return Event(self, max(self._free, self.now))

    def synchronize(self) -> None:
        """Let the host wait until the queue is empty."""
        self._host("wait", max(self._free - self.now, 0.0) + SYNC_US)

    def _host(self, name: str, microseconds: float) -> None:
        self.spans.append(Span("host", name, self.now, self.now + microseconds))
        self.now += microseconds

    def _run(self, kernel: _Kernel, start_us: float) -> None:
        name, flops, reads, writes, efficiency, streaming = kernel
        begin = max(self._free, self.now) + start_us
        self._settle_heat(begin, 0.0)
        missed, hit = self._missed(reads)
        self._missed(writes)
        written = sum(array.nbytes for array in writes)
        traffic = (missed / streaming + written) / MEMORY_TB_S / 1e6 + hit / L2_TB_S / 1e6
        activity = sum(a.activity * a.nbytes for a in reads) / max(1, sum(a.nbytes for a in reads))
        arithmetic, clock = flops / PEAK_TFLOPS / efficiency / 1e6, 1.0
        if flops:
            # The power limit depends on the kernel's share of arithmetic, and on its operands.
            demand = activity * efficiency * arithmetic / max(arithmetic, traffic)
            clock = (1 - POWER_DROOP * max(0.0, demand - POWER_FREE)) * (1 - HEAT_DROOP * self._heat)
            arithmetic /= clock
        lasts = max(arithmetic, traffic) + OVERLAP_LOST * min(arithmetic, traffic)
        lasts *= 1 + NOISE * abs(self._random.random() + self._random.random() - 1)
        if self._random.random() < HICCUP_CHANCE:
            lasts *= HICCUP
        self._free = begin + lasts
        self._settle_heat(self._free, activity * efficiency * arithmetic / max(arithmetic, traffic, 1e-9))
        self.spans.append(Span("device", name, begin, self._free))

    def _settle_heat(self, at: float, target: float) -> None:
        self._heat = target + (self._heat - target) * math.exp((self._heat_at - at) / HEAT_US)
        self._heat_at = at
