"""Measure `grouped_mm` and its peers on rows of `bench.rows`: results are verified, then timed in turn, in one run."""

from __future__ import annotations

import functools
import gc
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from course_kernels.bench import timing
from course_kernels.bench.interface import Calls, Operands, Provider, make_operands, one_line
from course_kernels.bench.rows import EVERY_PASS, PASSES, Row
from course_kernels.bench.verification import count_wrong

__all__ = ["GpuTimer", "Replay", "SustainedTimer", "WrongResult", "measure", "speedups", "verified_call", "verify"]

REPEATS = 40
_TRIAL_REPEATS = 5  # to choose a candidate
_COPY_BYTES = 4 * 2**30
# The relative loss of sums of 8-bit products in tensor cores: one or two in a hundred when all of K is one sum.
_LOSS_OF_8_BITS = 2.0**-5

Result = Tensor | Sequence[Tensor]


class WrongResult(AssertionError):
    """A provider's result is not the product."""


class Replay:
    """A captured call. Each call replays it and returns its result, always in the same memory."""

    def __init__(self, graph: torch.cuda.CUDAGraph, kept: list[Result]):
        self._graph, self._kept = graph, kept

    def __call__(self) -> Result | None:
        """The result; None after `forget`."""
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
        """Memory that several graphs may share."""
        return torch.cuda.graph_pool_handle()

    def peak_bytes(self, function: Callable[[], object]) -> int:
        """The most memory that one call holds at a time beside what was held before, its results included."""
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


def _exact(operands: Operands, pass_name: str) -> Iterator[Tensor]:
    """The float64 results of each group."""
    o = operands
    a = o.a.split(o.sizes)
    if pass_name in ("dA", "dB"):
        for g, d_out in enumerate(o.d_out.split(o.sizes)):
            yield d_out.double() @ o.weight[g].double() if pass_name == "dA" else d_out.double().mT @ a[g].double()
        return
    for g, factors in enumerate([None] * len(a) if o.scale_a is None else o.scale_a.split(o.sizes)):
        exact = a[g].double() @ o.weight[g].double().mT
        yield exact if factors is None else exact * (factors[:, None].double() * o.scale_b[g].double())


def verify(result: Result, operands: Operands, pass_name: str) -> None:
    """Compare a pass's result with float64 products, as `count_wrong` does, within one unit in the last place.

    The bound is wider for 8-bit operands, whose sums may lose more. ``result`` may be a list of the groups.

    Raises:
        WrongResult: names the first group that is wrong, and how many of its elements are.
    """
    if pass_name == "step":
        for each, part in zip(("forward", "dA", "dB"), result, strict=True):
            try:
                verify(part, operands, each)
            except WrongResult as error:
                raise WrongResult(f"{each}: {error}") from None
        return
    sizes, groups = operands.sizes, result
    if isinstance(result, Tensor):
        groups = result.unbind() if pass_name == "dB" else result.split(sizes)
    if len(groups) != len(sizes):
        raise WrongResult(f"{len(groups)} groups came back, wanted {len(sizes)}")
    N, K = operands.weight.shape[1:]
    for g, (group, size) in enumerate(zip(groups, sizes)):
        shape = {"dA": (size, K), "dB": (N, K)}.get(pass_name, (size, N))
        if group.shape != shape:
            raise WrongResult(f"group {g} has shape {tuple(group.shape)}, wanted {shape}")
    unit = _LOSS_OF_8_BITS if operands.scale_a is not None else torch.finfo(groups[0].dtype).eps if groups else 0.0
    for g, count in enumerate(count_wrong(groups, _exact(operands, pass_name), unit)):
        if count:
            raise WrongResult(f"{count} of {groups[g].numel()} elements of group {g} are wrong ({sizes[g]} rows)")


def _poison(result: Result) -> None:
    for part in [result] if isinstance(result, Tensor) else result:
        part.fill_(float("nan"))


def _fastest(candidates: dict[str, Callable], timer, failures: dict[str, str]) -> tuple[str, Callable[[], Result]]:
    """Name and graph of the fastest candidate; `failures` gets the reasons of those that cannot run."""
    graphs = {}
    for name, function in candidates.items():
        try:
            graphs[name] = timer.graph(function)
        except Exception as error:
            timer.settle()
            if len(candidates) == 1:
                raise
            failures[name] = one_line(error)
    if not graphs:
        raise RuntimeError(f"no configuration runs; the first: {next(iter(failures.values()))}")
    if len(graphs) == 1:
        return next(iter(graphs.items()))
    times = timer.interleaved_us(graphs, _TRIAL_REPEATS)
    best = min(graphs, key=lambda name: statistics.median(times[name]))
    return best, graphs[best]


def verified_call(
    candidates: dict[str, Callable], pass_name: str, operands: Operands, timer, failures: dict[str, str]
) -> tuple[str, Callable[[], Result]]:
    """Name and function of the candidate to time, after its result over poisoned memory was verified.

    A candidate that cannot run or is wrong is left to the next fastest, and `failures` gets the reason.
    """
    if pass_name == "called":
        choice, function = next(iter(candidates.items()))
    else:
        choice, function = _fastest(candidates, timer, failures)
    # The freed NaNs are what the allocator gives a call that makes its own result.
    _poison(function())
    try:
        verify(function(), operands, pass_name)
    except WrongResult as error:
        others = {name: each for name, each in candidates.items() if name != choice and name not in failures}
        if pass_name == "called" or not others:
            raise
        failures[choice] = one_line(error)
        del function  # its graph keeps memory
        return verified_call(others, pass_name, operands, timer, failures)
    return choice, function


def _verified_steps(prepared: Mapping[str, Calls], operands: Operands, timer, attempt, entry: dict) -> dict:
    """The steps to time by provider, as CUDA graphs; if one of them cannot be captured, all as they are called.

    What is timed was verified. The entry gets how steps are timed, and the peak memory of each.
    """
    peaks = entry["peak_bytes"] = {}

    def verified(name: str, call: Callable) -> bool:
        def check() -> bool:
            _poison(call())
            verify(call(), operands, "step")
            return True

        if not (right := attempt(name, "step", check)):
            peaks.pop(name)
        return bool(right)

    called, replays, pool = {}, {}, timer.pool()
    for name, calls in prepared.items():
        for function in calls.step.values():
            attempt(name, "step", function)  # the first call compiles, and makes what later ones find
            if (peak := attempt(name, "step", timer.peak_bytes, function)) is not None:
                called[name], peaks[name] = function, peak
    entry["step_timed"] = "as a CUDA graph"
    for name, function in called.items():
        timer.free()  # what the calls before have left in the allocator's cache
        try:
            replay = timer.graph(function, pool)
            timer.settle()
        except Exception as error:
            timer.settle()
            entry["step_timed"] = f"as called, for {name} cannot be captured: {one_line(error)}"
            replays.clear()
            return {name: function for name, function in called.items() if name in peaks and verified(name, function)}
        if verified(name, replay):
            replays[name] = replay
        timer.forget(replay)
    return replays


def _measure_row(
    row: Row, providers: Sequence[Provider], passes: Sequence[str], repeats: int, device, dtype, timer
) -> dict:
    operands = make_operands(row, device, dtype)
    entry = {
        "title": row.title, "sizes": list(row.sizes), "N": row.N, "K": row.K, "kind": row.kind, "unit": row.unit,
        "flops": row.flops, "bytes": {name: row.bytes_moved(name, dtype.itemsize) for name in passes},
        "us": {}, "rate": {}, "choice": {}, "host_us": {}, "unsuited": {}, "failed": {},
    }  # fmt: skip
    prepared: dict[str, Calls] = {}

    def attempt(name: str, step: str, function: Callable, *arguments):
        """The function's value; if it fails, None, and the entry has the reason."""
        try:
            value = function(*arguments)
            timer.settle()
            return value
        except Exception as error:
            entry["failed"].setdefault(name, {})[step] = one_line(error)
        timer.settle()  # raises if the device is lost: nothing more can be measured
        return None

    for provider in providers:
        if reason := provider.unsuited(row):
            entry["unsuited"][provider.name] = reason
        elif (calls := attempt(provider.name, "prepare", provider.prepare, operands)) is not None:
            prepared[provider.name] = calls
    for pass_name in passes:
        ready, choices, found = {}, {}, None
        if pass_name == "step":
            ready = _verified_steps(prepared, operands, timer, attempt, entry)
        for name, calls in prepared.items():
            if pass_name == "step" or not (candidates := calls.of(pass_name)):
                continue
            failures: dict[str, str] = {}
            arguments = (candidates, pass_name, calls.operands or operands, timer, failures)
            found = attempt(name, pass_name, verified_call, *arguments)
            for candidate, reason in failures.items():
                entry["failed"].setdefault(name, {})[f"{pass_name}, {candidate}"] = reason
            if found is not None:
                choices[name], ready[name] = found
        times = timer.interleaved_us(ready, repeats) if ready else {}
        us = entry["us"][pass_name] = {name: timing.summary(values) for name, values in times.items()}
        rates = {name: row.rate(each["median_us"], pass_name, dtype.itemsize) for name, each in us.items()}
        entry["rate"][pass_name] = {name: float(f"{rate:.4g}") for name, rate in rates.items()}
        entry["choice"][pass_name] = {name: choice for name, choice in choices.items() if choice}
        if pass_name == "called":
            entry["host_us"] = {name: round(timer.host_us(function), 1) for name, function in ready.items()}
        del ready, found  # graphs keep their memory
        timer.free()
    return entry


def measure(
    rows: Sequence[Row],
    providers: Sequence[Provider],
    *,
    passes: Sequence[str] = PASSES,
    repeats: int = REPEATS,
    device: torch.device | str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    timer=None,
    tell: Callable[[Row, dict], object] | None = None,
) -> dict:
    """Measure rows: verify every provider's result over poisoned memory, then time all of them in turn.

    Args:
        rows: problems, one after the other; their memory is freed between them.
        providers: those that are not available here are left out, with the reason in the result.
        passes: of `EVERY_PASS`.
        repeats: timed calls of each provider and pass, at least 2.
        dtype: of the operands. 8-bit operands have scales and no gradients, and need providers of scaled products.
        timer: the clock; None is `GpuTimer`, with which providers take turns.
        tell: called with each row and its entry as soon as it is measured.

    Returns:
        A dict for `record.write`: "dtype", "repeats", "copy_tb_s" (the ceiling of memory-bound rows), "providers"
        (label, role, version, and why one is absent), "rows" and "speedups" (see `speedups`). A row has µs (median
        and quartiles) and rate by pass and provider, host µs per call, the chosen candidates, "unsuited" and "failed".
        With the pass "step" it has "peak_bytes", the most memory that a step holds beside the operands, and
        "step_timed": as a CUDA graph, or as called.
        A provider that failed has no times; its row has the reason.

    Raises:
        ValueError: an unknown pass, one that 8-bit operands do not have, or fewer than 2 repeats.
    """
    known = EVERY_PASS if dtype.itemsize > 1 else PASSES[:2]
    if unknown := [name for name in passes if name not in known]:
        raise ValueError(f"passes must be among {', '.join(known)}, got {', '.join(map(repr, unknown))}")
    if repeats < 2:
        raise ValueError(f"repeats must be at least 2, since quartiles are taken; got {repeats}")
    timer = GpuTimer() if timer is None else timer
    about, present = {}, []
    for provider in providers:
        about[provider.name] = {"label": provider.label, "role": provider.role}
        if reason := provider.unavailable():
            about[provider.name]["absent"] = reason
            continue
        present.append(provider)
        if version := provider.version():
            about[provider.name]["version"] = version
    results = {
        "dtype": str(dtype).removeprefix("torch."),
        "repeats": repeats,
        "copy_tb_s": round(timer.copy_tb_s(), 3),
        "providers": about,
        "rows": {},
    }
    timer.free()
    for row in rows:
        entry = results["rows"][row.name] = _measure_row(row, present, passes, repeats, device, dtype, timer)
        timer.free()
        if tell is not None:
            tell(row, entry)
    results["speedups"] = speedups(results)
    return results


def speedups(results: Mapping) -> dict:
    """How many times faster each of ours is than the others in results of `measure`, as geometric means over rows.

    Returns:
        ours → pass → other → {"times", "rows", "worst"}: the mean, the number of rows, the smallest of their ratios.
        The other "best peer" is the fastest peer of each row.
    """
    roles = {name: each["role"] for name, each in results["providers"].items()}
    ratios: dict = {}  # ours → pass → other → a ratio for each row
    for mine in (name for name, role in roles.items() if role == "ours"):
        for entry in results["rows"].values():
            for pass_name, us in entry["us"].items():
                if mine not in us:
                    continue
                others = {name: us[name]["median_us"] for name in us if name != mine and roles[name] != "candidate"}
                if peers := [time for name, time in others.items() if roles[name] == "peer"]:
                    others["best peer"] = min(peers)
                for other, time in others.items():
                    by_other = ratios.setdefault(mine, {}).setdefault(pass_name, {})
                    by_other.setdefault(other, []).append(time / us[mine]["median_us"])

    def summary(values: list[float]) -> dict:
        mean = math.exp(statistics.fmean(map(math.log, values)))
        return {"times": round(mean, 3), "rows": len(values), "worst": round(min(values), 3)}

    return {
        mine: {
            pass_name: {other: summary(values) for other, values in by_other.items()}
            for pass_name, by_other in by_pass.items()
        }
        for mine, by_pass in ratios.items()
    }
