"""Numbers that lessons compute from records of measurements, in the order of the lessons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_kernels import schedule
from course_kernels.bench.rows import title_of
from course_kernels.kernels.cute_sm90.config import CuteConfig


class ProgramTimes(NamedTuple):
    """Time of one launch by its number of programs."""

    simulated_us: Mapping[int, float]  # programs → µs of the cost model
    recorded_us: Mapping[int, float]  # programs → µs measured
    tiles: int = 0  # of the whole batch


def program_times(recorded: Mapping, kernel: str, problems: Sequence[Sequence[int]]) -> ProgramTimes:
    """One kernel's measured times in a row of `programs.json`, and simulated times for every number of programs.

    Args:
        recorded: the row; "<kernel>" has µs by number of programs, "<kernel> block" the tile's extents.
        problems: (M, N, K) of each problem of the row.
    """
    block = recorded[f"{kernel} block"]
    measured = {int(programs): us for programs, us in recorded[kernel].items()}
    every = range(min(measured), max(measured) + 1)
    simulated = {programs: schedule.simulate(problems, "round_robin", programs, block).makespan for programs in every}
    return ProgramTimes(simulated, measured, sum(schedule.tile_counts(problems, *block[:2])))


def ratios(rows: Mapping[str, dict], product: str, before: CuteConfig, after: CuteConfig) -> list[tuple[float, float]]:
    """For each row with both times: the product's K, and the time of ``before`` divided by that of ``after``.

    Args:
        rows: of the record "hopper_steps" or "configurations".
        product: "forward", "dA" or "dB". For "dB", K is the average number of rows of a group.
    """
    found = []
    for row in rows.values():
        us = row.get(product, {}).get("us", {})
        both = [us.get(f"cute {config.name}") for config in (before, after)]
        if None not in both:
            rows_each = sum(row["sizes"]) / len(row["sizes"])
            depth = {"forward": row["K"], "dA": row["N"], "dB": rows_each}[product]
            found.append((depth, both[0] / both[1]))
    return found


def step_times(results: Mapping) -> dict[str, dict[str, float]]:
    """Microseconds of each row's three products by the fastest of our kernels, and of a copy of its weight gradient.

    The products are measured. The copy is computed: 16-bit gradients are read and written, at the record's copy rate.

    Args:
        results: a record of the benchmark of ``grouped_mm``.

    Returns:
        Row title → "forward", "dA", "dB" and "copy".
    """
    ours = [name for name, about in results["providers"].items() if about["role"] == "ours" and "absent" not in about]
    found = {}
    for entry in results["rows"].values():
        best = {of: min(entry["us"][of][name]["median_us"] for name in ours) for of in ("forward", "dA", "dB")}
        moved = 2 * 2 * len(entry["sizes"]) * entry["N"] * entry["K"]  # bytes
        found[title_of(entry)] = best | {"copy": moved / results["copy_tb_s"] / 1e6}
    return found


def gradient_times(results: Mapping) -> dict[str, dict[str, float]]:
    """Microseconds of the gradients of weights and biases in a record of ``gmm``: model and router → provider → µs."""
    found = {}
    for name, entry in results["rows"].items():
        model, router = entry["title"].partition(":")[0], name.rpartition("-")[2]
        us = {provider: time["median_us"] for provider, time in entry["us"]["gradients"].items()}
        found[f"{model}, {router.replace('zipf', 'Zipf')}"] = us
    return found


def dense_tflops(results: Mapping) -> float:
    """TFLOP/s of the fastest dense forward product in a record."""
    return max(row["rate"]["forward"].get("dense", 0.0) for row in results["rows"].values())


def fastest_us(results: Mapping, row: str) -> float:
    """Microseconds of the faster of our two kernels for the forward product of a record's row."""
    times = results["rows"][row]["us"]["forward"]
    return min(times[kernel]["median_us"] for kernel in ("triton", "cute"))


def shares_of_a_copy(results: Mapping, rows: int, *, clean: bool = False) -> dict[str, list[float]]:
    """Kind of operands → the bandwidth of our faster masked kernel divided by that of a copy, for each shape.

    Args:
        results: the record "masked".
        rows: expected rows of a group; the record's other cells are left out.
        clean: take the calls with a clean cache.
    """
    found: dict[str, list[float]] = {}
    for cell in results["cells"].values():
        for kind, about in cell["kinds"].items() if cell["rows"] == rows else ():
            rates = (about["clean"] if clean else about)["rates"]
            fastest = max(rates[kernel]["tb_s"] for kernel in ("triton", "cute") if kernel in rates)
            found.setdefault(kind, []).append(fastest / results["copy_tb_s"])
    return found


def jagged_times(rows: Mapping) -> dict[str, dict[str, float]]:
    """Row title, on two lines → provider → microseconds of the product, for the rows of the record "jagged"."""
    return {
        title_of(row, lines=2): {name: time["median_us"] for name, time in row["us"]["forward"].items()}
        for row in rows.values()
    }


def ceiling(results: Mapping, row: str, of: str = "forward") -> float | None:
    """The best rate that a row could reach. "called" has the same ceiling as "forward".

    Returns:
        If arithmetic bounds the row, the TFLOP/s of a dense GEMM of the same size, or None if that was not measured. If
        memory bounds it, the TB/s of a copy.
    """
    entry = results["rows"][row]
    if entry["kind"] == "memory":
        return results["copy_tb_s"]
    dense = [name for name, about in results["providers"].items() if about["role"] == "ceiling"]
    rate = entry["rate"].get("forward" if of == "called" else of, {})
    return next((rate[name] for name in dense if name in rate), None)


class Share(NamedTuple):
    """Shares of one row's time that add up to 1."""

    bound: str
    """"arithmetic" or "memory", whichever takes longer."""
    parts: dict[str, float]
    """Part → share, in the order in which they are drawn."""


def shares(results: Mapping, provider: str, block: tuple[int, int], sms: int) -> dict[str, Share]:
    """Divide the forward time of each row into shares.

    The roof is arithmetic at the rate of a dense GEMM of the row's size, or traffic at the bandwidth of a copy,
    whichever takes longer. Where it is arithmetic, the rows of tiles past the end of their group come next, then the
    last wave of tiles on the SMs.

    Args:
        block: rows and columns of the provider's tiles.
        sms: tiles that run at once.

    Returns:
        Row → shares. A part that is longer than the time left is cut; "the rest" is the unexplained time.
    """
    rows = {name: entry for name, entry in results["rows"].items() if provider in entry["us"].get("forward", {})}
    if not rows:
        raise ValueError(f"provider must be one that was measured, {provider!r} was not")
    found = {}
    for name, entry in rows.items():
        total = entry["us"]["forward"][provider]["median_us"]
        # The row's own ceiling and not the highest of all: it was measured at the clock that the row's other times had.
        dense = ceiling(results, name) if entry["kind"] == "compute" else float("inf")
        if dense is None:
            raise ValueError(f"results must have the dense product of row {name!r}, as its ceiling")
        arithmetic = entry["flops"] / dense / 1e6
        traffic = entry["bytes"]["forward"] / results["copy_tb_s"] / 1e6
        used = dict.fromkeys(("the roof", "rows past the end of their group", "the last wave", "the rest"), 0.0)
        used["the roof"] = max(arithmetic, traffic)
        if arithmetic >= traffic:
            row_tiles = sum(-(-size // block[0]) for size in entry["sizes"])
            columns = -(-entry["N"] // block[1])
            whole = row_tiles * block[0] * columns * block[1] / (sum(entry["sizes"]) * entry["N"])
            waves = -(-row_tiles * columns // sms) * sms / (row_tiles * columns)
            used["rows past the end of their group"] = arithmetic * (whole - 1)
            used["the last wave"] = arithmetic * whole * (waves - 1)
        room = 1.0
        for part, time in used.items():
            used[part] = min(time / total, room)
            room -= used[part]
        used["the rest"] = room
        found[name] = Share("arithmetic" if arithmetic >= traffic else "memory", used)
    return found
