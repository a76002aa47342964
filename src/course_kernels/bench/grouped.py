"""Measure `grouped_mm` and its peers on rows of `bench.rows`: verified first, then timed in turn, in one run."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from course_kernels.bench import timing
from course_kernels.bench.interface import Calls, Operands, Provider, make_operands
from course_kernels.bench.rows import PASSES, Row

__all__ = ["GpuTimer", "SustainedTimer", "WrongResult", "measure", "speedups", "verify"]

REPEATS = 40
_TRIAL_REPEATS = 5  # to choose a candidate
_HOST_REPEATS = 60
_COPY_BYTES = 4 * 2**30
# What sums of 8-bit products may lose in tensor cores, of the element and of its group's root mean square each: one or
# two in a hundred where all of K is one sum.
_LOSS_OF_8_BITS = 2.0**-5

Result = Tensor | Sequence[Tensor]


class WrongResult(AssertionError):
    """A provider's result is not the product."""


class GpuTimer:
    """The clock of a measurement: CUDA graphs, events, a flushed L2 cache. Tests bring another."""

    def graph(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Capture one call; what is returned replays it and returns its result, the same memory each time."""
        kept: list[Result] = []

        def once() -> None:
            kept.clear()  # first, so that two results never live at once
            kept.append(function())

        graph = timing.capture(once)

        def replay() -> Result:
            graph.replay()
            return kept[0]

        return replay

    def interleaved_us(self, functions: Mapping[str, Callable], repeats: int) -> dict[str, list[float]]:
        """As `timing.interleaved_us`."""
        return timing.interleaved_us(dict(functions), repeats)

    def host_us(self, function: Callable) -> float:
        """As `timing.host_us`."""
        return timing.host_us(function, _HOST_REPEATS)

    def copy_tb_s(self) -> float:
        """Bytes read and written by a copy within the device's memory, in TB/s."""
        source = torch.zeros(_COPY_BYTES // 4, dtype=torch.int32, device="cuda")
        target = torch.empty_like(source)
        times = timing.interleaved_us({"copy": lambda: target.copy_(source)}, 20)["copy"]
        return 2 * _COPY_BYTES / statistics.median(times) / 1e6

    def settle(self) -> None:
        """Wait for the device; raises what it has to complain of."""
        torch.cuda.synchronize()

    def free(self) -> None:
        """Give memory that is no longer used back to the device."""
        gc.collect()
        torch.cuda.empty_cache()


class SustainedTimer(GpuTimer):
    """A clock for what bounds a product that runs again and again, as layers do: power. Providers run by themselves,
    one after the other, and the best of their candidates is the best of such runs."""

    def interleaved_us(self, functions: Mapping[str, Callable], repeats: int) -> dict[str, list[float]]:
        """As `timing.sustained_us`."""
        return timing.sustained_us(dict(functions), repeats)


def _groups(result: Result, operands: Operands, of: str) -> Sequence[Tensor]:
    if not isinstance(result, Tensor):
        return result
    return result.unbind() if of == "dB" else result.split(operands.sizes)


def verify(result: Result, operands: Operands, of: str) -> None:
    """Compare a pass's result with float64 products, element by element.

    The bound is one unit in the last place of the result's dtype, at the element and at the group's root mean square
    each: the rounding, and sums in another order (cuBLAS may add parts in bfloat16). It is wider for 8-bit operands,
    whose sums may lose more. Operands are random normal, so an element that was not computed is off by far more.

    Args:
        result: of the pass, or a list of its groups.
        operands: that it was computed from.
        of: one of `PASSES`.

    Raises:
        WrongResult: names the first group that is wrong, and how many of its elements are.
    """
    sizes, outs = operands.sizes, _groups(result, operands, of)
    scaled = operands.scale_a is not None
    a = operands.a.split(sizes)
    d_out = None if scaled else operands.d_out.split(sizes)
    factors = operands.scale_a.split(sizes) if scaled else None
    wrong = []
    for g, out in enumerate(outs):
        if of == "dA":
            exact = d_out[g].double() @ operands.weight[g].double()
        elif of == "dB":
            exact = d_out[g].double().mT @ a[g].double()
        else:
            exact = a[g].double() @ operands.weight[g].double().mT
        if scaled:
            exact *= factors[g][:, None].double() * operands.scale_b[g].double()
        if out.shape != exact.shape:
            raise WrongResult(f"group {g} has shape {tuple(out.shape)}, wanted {tuple(exact.shape)}")
        rms = exact.square().mean().sqrt() if exact.numel() else 0.0
        bound = (exact.abs() + rms) * (_LOSS_OF_8_BITS if scaled else torch.finfo(out.dtype).eps)
        wrong.append((~((out.double() - exact).abs() <= bound)).sum())  # a NaN is not within any bound
    if len(outs) != len(sizes):
        raise WrongResult(f"{len(outs)} groups came back, wanted {len(sizes)}")
    counts = torch.stack(wrong).tolist() if wrong else []
    for g, count in enumerate(counts):
        if count:
            raise WrongResult(f"{count} of {outs[g].numel()} elements of group {g} are wrong ({sizes[g]} rows)")


def _poison(result: Result) -> None:
    for part in [result] if isinstance(result, Tensor) else result:
        part.fill_(float("nan"))


def _chosen(candidates: dict[str, Callable], timer, failures: dict[str, str]) -> tuple[str, Callable[[], Result]]:
    """The fastest candidate as a graph, and its name; those that cannot run are noted."""
    graphs = {}
    for name, function in candidates.items():
        try:
            graphs[name] = timer.graph(function)
        except Exception as error:
            timer.settle()
            if len(candidates) == 1:
                raise
            failures[name] = _reason(error)
    if not graphs:
        raise RuntimeError(f"no configuration runs; the first: {next(iter(failures.values()))}")
    if len(graphs) == 1:
        return next(iter(graphs.items()))
    times = timer.interleaved_us(graphs, _TRIAL_REPEATS)
    best = min(graphs, key=lambda name: statistics.median(times[name]))
    return best, graphs[best]


def _ready(candidates: dict[str, Callable], of: str, operands: Operands, timer, failures: dict[str, str]):
    """(candidate, function to time) of a pass, after its result over poisoned memory was verified."""
    if of == "called":
        choice, function = next(iter(candidates.items()))
    else:
        choice, function = _chosen(candidates, timer, failures)
    # The freed NaNs are what the allocator gives a call that makes its own result.
    _poison(function())
    result = function()
    verify(result, operands, of)
    return choice, function


def _reason(error: Exception) -> str:
    """An exception on one line that fits a table's footnote."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}".rstrip(": ")


def _measure_row(
    row: Row, providers: Sequence[Provider], passes: Sequence[str], repeats: int, device, dtype, timer
) -> dict:
    operands = make_operands(row, device, dtype)
    entry = {
        "title": row.title, "sizes": list(row.sizes), "N": row.N, "K": row.K, "kind": row.kind, "unit": row.unit,
        "flops": row.flops, "bytes": {of: row.bytes_moved(of, dtype.itemsize) for of in passes},
        "us": {}, "rate": {}, "choice": {}, "host_us": {}, "unsuited": {}, "failed": {},
    }  # fmt: skip
    prepared: dict[str, Calls] = {}

    def attempt(name: str, step: str, function: Callable, *arguments):
        """The function's value; None where it failed, and then the entry says why."""
        try:
            value = function(*arguments)
            timer.settle()
            return value
        except Exception as error:
            entry["failed"].setdefault(name, {})[step] = _reason(error)
        timer.settle()  # raises where the device is lost, and with it every figure to come
        return None

    for provider in providers:
        if reason := provider.unsuited(row):
            entry["unsuited"][provider.name] = reason
        elif (calls := attempt(provider.name, "prepare", provider.prepare, operands)) is not None:
            prepared[provider.name] = calls
    for of in passes:
        ready, choices, found = {}, {}, None
        for name, calls in prepared.items():
            if not (candidates := calls.of(of)):
                continue
            failures: dict[str, str] = {}
            found = attempt(name, of, _ready, candidates, of, calls.operands or operands, timer, failures)
            for candidate, reason in failures.items():
                entry["failed"].setdefault(name, {})[f"{of}, {candidate}"] = reason
            if found is not None:
                choices[name], ready[name] = found
        times = timer.interleaved_us(ready, repeats) if ready else {}
        entry["us"][of] = {name: timing.summary(values) for name, values in times.items()}
        entry["rate"][of] = {
            name: float(f"{row.rate(us['median_us'], of, dtype.itemsize):.4g}") for name, us in entry["us"][of].items()
        }
        entry["choice"][of] = {name: choice for name, choice in choices.items() if choice}
        if of == "called":
            entry["host_us"] = {name: round(timer.host_us(function), 1) for name, function in ready.items()}
        del ready, found  # a graph keeps its memory
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
    """Measure rows: every provider's result verified over poisoned memory, then all of them timed in turn.

    Args:
        rows: problems, one after the other; their memory is freed between them.
        providers: those that are not available here are left out, with the reason in the result.
        passes: of `PASSES`.
        repeats: timed calls of each provider and pass, at least 2.
        device: of the operands.
        dtype: of the operands. Those of 8 bits have scales and no gradients; providers must be made for them.
        timer: what times; None is `GpuTimer`, which lets providers take turns.
        tell: called with each row and its entry as soon as it is measured.

    Returns:
        A dict for `record.write`: "dtype", "repeats", "copy_tb_s" (the ceiling of memory-bound rows), "providers"
        (label, role, version, and why one is absent), "rows" and "speedups" (see `speedups`). A row has µs (median
        and quartiles) and rate by pass and provider, host µs per call, the configuration chosen among several,
        "unsuited" and "failed". A provider that failed has no times; what failed and why stands in its row.

    Raises:
        ValueError: an unknown pass, one that 8-bit operands do not have, or fewer than 2 repeats.
    """
    known = PASSES if dtype.itemsize > 1 else PASSES[:2]
    if unknown := [of for of in passes if of not in known]:
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
    """How many times faster each of ours is than the others, as geometric means over rows.

    Args:
        results: of `measure`.

    Returns:
        ours → pass → other → {"times", "rows", "worst"}: the mean, over how many rows, the least of them. The other
        "best peer" is the fastest peer of each row.
    """
    about = results["providers"]
    ours = [name for name, each in about.items() if each["role"] == "ours"]
    peers = [name for name, each in about.items() if each["role"] == "peer"]
    candidates = [name for name, each in about.items() if each["role"] == "candidate"]
    table: dict = {}
    for mine in ours:
        for entry in results["rows"].values():
            for of, us in entry["us"].items():
                if mine not in us:
                    continue
                others = {name: us[name]["median_us"] for name in us if name != mine and name not in candidates}
                if among := [others[name] for name in peers if name in others]:
                    others["best peer"] = min(among)
                for other, time in others.items():
                    ratios = table.setdefault(mine, {}).setdefault(of, {}).setdefault(other, [])
                    ratios.append(time / us[mine]["median_us"])
    return {
        mine: {
            of: {
                other: {
                    "times": round(math.exp(statistics.fmean(map(math.log, ratios))), 3),
                    "rows": len(ratios),
                    "worst": round(min(ratios), 3),
                }
                for other, ratios in others.items()
            }
            for of, others in by_pass.items()
        }
        for mine, by_pass in table.items()
    }
