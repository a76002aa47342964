"""The clock of a measurement on a GPU: CUDA graphs, events, memory. Tests use another."""

from __future__ import annotations

import functools
import gc
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from course_kernels.bench import timing

__all__ = ["GpuTimer", "Replay", "Result", "SustainedTimer"]

Result = Tensor | Sequence[Tensor]
_COPY_BYTES = 4 * 2**30


class Replay:
    """A captured call. Each call replays it and returns its result, always in the same memory."""

    def __init__(self, graph: torch.cuda.CUDAGraph, kept: list[Result]):
        self._graph, self._kept = graph, kept

    def __call__(self) -> Result | None:
        """Replay the call; return its result, or None after `forget`."""
        self._graph.replay()
        return self._kept[0] if self._kept else None

    def forget(self) -> None:
        """Leave the result's memory to the next graph of the pool. Calls go on writing there."""
        self._kept.clear()


class GpuTimer:
    """The clock of a measurement: CUDA graphs, events, a flushed L2 cache. Tests use another."""

    interleaved_us = staticmethod(timing.interleaved_us)
    host_us = staticmethod(functools.partial(timing.host_us, repeats=60))

    def graph(self, function: Callable[[], Result], pool: tuple | None = None) -> Callable[[], Result]:
        """Capture one call, see `Replay` and `timing.capture`."""
        kept: list[Result] = []

        def once() -> None:
            kept.clear()  # first, so that two results never live at once
            kept.append(function())

        return Replay(timing.capture(once, pool=pool), kept)

    def forget(self, call: Replay) -> None:
        """Free the result of a captured call; the call can still be replayed."""
        call.forget()

    def pool(self) -> tuple:
        """Make a memory pool that several graphs may share."""
        return torch.cuda.graph_pool_handle()

    def peak_bytes(self, function: Callable[[], object]) -> int:
        """The peak memory of one call in bytes, its results included, beside memory that was held before."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = function()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        del kept
        return peak

    def copy_tb_s(self) -> float:
        """Bytes read and written by a copy within the device's memory, in TB/s."""
        source = torch.zeros(_COPY_BYTES // 4, dtype=torch.int32, device="cuda")
        target = torch.empty_like(source)
        times = timing.interleaved_us({"copy": lambda: target.copy_(source)}, 20)["copy"]
        return 2 * _COPY_BYTES / statistics.median(times) / 1e6

    def settle(self) -> None:
        """Wait for the device; raises its pending error, if any."""
        torch.cuda.synchronize()

    def free(self) -> None:
        """Give unused memory back to the device."""
        gc.collect()
        torch.cuda.empty_cache()


class SustainedTimer(GpuTimer):
    """A clock for products that run again and again, as layers do, where the power limit decides the speed.

    Providers run one after the other, each by itself, and so do the candidates of a provider.
    """

    interleaved_us = staticmethod(timing.sustained_us)
