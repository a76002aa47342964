"""Time of work on a GPU: random data, warm-up, L2 flushed, medians."""

from __future__ import annotations

import functools
import itertools
import random
import statistics
import time
from collections.abc import Callable

import torch


@functools.cache
def _capturing_stream(device: int) -> torch.cuda.Stream:
    """The stream of all captures: within a pool, memory is used again on the stream that it was used on."""
    return torch.cuda.Stream(device)


def capture(function: Callable[[], object], warmups: int = 3, pool: tuple | None = None) -> torch.cuda.CUDAGraph:
    """Capture one call of ``function`` in a CUDA graph, after warming it up on a side stream.

    Graphs with one ``pool`` allocate from the same memory. They must not run at once, and what one leaves there is lost
    when another runs.
    """
    stream = _capturing_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmups):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    # Not with `torch.cuda.graph`: it gives unused memory back to the device each time, and a sweep captures thousands.
    free, total = torch.cuda.mem_get_info()
    if 2 * free < total:
        torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(*([] if pool is None else [pool]))
        try:
            function()
        finally:
            graph.capture_end()
    return graph


def interleaved_us(
    functions: dict[str, Callable[[], object]], repeats: int = 60, before: Callable[[], object] = lambda: None
) -> dict[str, list[float]]:
    """Time several functions in turn, each round in another order.

    Taking turns spreads clock drift over all of them. The order changes because a function may leave the next one a
    slower clock.

    Args:
        functions: name → callable that enqueues the work, already warm.
        repeats: timed calls of each.
        before: enqueues work between the overwriting of L2 and the timed call.

    Returns:
        name → µs of each call, between events on the device. Each call finds the L2 cache overwritten; meanwhile the
        host enqueues the call, so its time is not measured.
    """
    flush = torch.empty(64 * 2**20, dtype=torch.int32, device="cuda")
    events = {
        name: [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)] for name in functions
    }
    order = random.Random(0)
    for i in range(repeats):
        for name, function in order.sample(list(functions.items()), len(functions)):
            start, end = events[name][i]
            flush.zero_()
            before()
            start.record()
            function()
            end.record()
    torch.cuda.synchronize()
    return {name: [start.elapsed_time(end) * 1e3 for start, end in pairs] for name, pairs in events.items()}


def sustained_us(
    functions: dict[str, Callable[[], object]],
    repeats: int = 7,
    seconds: float = 0.1,
    settling: float = 0.3,
    rounds: int = 3,
) -> dict[str, list[float]]:
    """Time several functions one after the other, each called back to back.

    A function first runs until the GPU's clock has settled at the power that it draws. Each round has another order,
    because the function before has a small effect: it leaves the GPU warmer or cooler. The L2 cache is not overwritten.

    Args:
        functions: name → callable that enqueues the work, already warm.
        repeats: measurements of a function in a round.
        seconds: measured time of a function in a round.
        settling: seconds before that.
        rounds: turns of each function.

    Returns:
        name → µs of a call, for each measurement.
    """

    def run(function: Callable[[], object], calls: int, parts: int) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(parts + 1)]
        marks[0].record()
        for mark in marks[1:]:
            for _ in range(calls):
                function()
            mark.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 / calls for start, end in itertools.pairwise(marks)]

    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in random.sample(list(functions.items()), len(functions)):
            us = run(function, 2, 1)[0]
            run(function, max(1, round(settling * 1e6 / us)), 1)
            times[name] += run(function, max(1, round(seconds * 1e6 / repeats / us)), repeats)
    return times


def host_us(function: Callable[[], object], repeats: int = 200) -> float:
    """Median host time of one call in µs, calls back to back."""
    for _ in range(10):
        function()
    torch.cuda.synchronize()
    times = []
    for i in range(repeats):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e6)
        if i % 20 == 19:
            torch.cuda.synchronize()  # a full launch queue would make the host wait for the device
    torch.cuda.synchronize()
    return statistics.median(times)


def summary(times_us: list[float]) -> dict[str, float]:
    """Median and quartiles of a list of times, rounded to 10 ns."""
    low, median, high = statistics.quantiles(times_us, n=4)
    return {"median_us": round(median, 2), "q1_us": round(low, 2), "q3_us": round(high, 2)}
