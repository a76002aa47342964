"""Numbers that lessons compute from records of measurements, in the order of the lessons."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_kernels import schedule
from course_kernels.bench import record
from course_kernels.bench.rows import title_of
from course_kernels.kernels.cute_sm90.config import CuteConfig

# Ways to compute a layer in the record of the MoE layer, all as called but the products, and their names in figures.
LAYERS = {
    "products": "its products alone",
    "ours": "this library",
    "liger": "Liger",
    "transformers": "transformers",
}


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


def layer_record() -> Mapping:
    """The record of the MoE layer; one without rows if there is none yet."""
    with contextlib.suppress(FileNotFoundError):
        return record.load("moe")
    return {"rows": []}


def layer_rows(model: str, results: Mapping | None = None) -> list[dict]:
    """The rows of a model in the record of the MoE layer, by tokens; none if there is no record yet.

    Args:
        model: its name in ``course_kernels.bench.zoo``.
        results: the record; that of ``layer_record`` by default.
    """
    rows = (layer_record() if results is None else results)["rows"]
    return sorted((row for row in rows if row["model"] == model), key=lambda row: row["tokens"])


def layer_title(row: Mapping) -> str:
    """A row of the record of the MoE layer in words: its model, tokens, and routing unless it is uniform."""
    zipf = " (Zipf)" if row["routing"] == "zipf" else ""
    return f"{row['model']}, {row['tokens']:,} token{'s' * (row['tokens'] > 1)}{zipf}"


def layer_flops(row: Mapping, part: str) -> int:
    """FLOP of the products of a row of the record of the MoE layer, forward or in a step."""
    return 6 * row["tokens"] * row["k"] * row["H"] * row["I"] * (3 if part == "step" else 1)


def layer_rates(rows: Sequence[Mapping], part: str) -> dict[str, dict[int, float]]:
    """TFLOP/s of each way to compute a layer: way → tokens → rate. Only the products alone are timed in a CUDA graph.

    Args:
        rows: as from ``layer_rows``; of one routing.
        part: "forward" or "step".
    """
    found: dict[str, dict[int, float]] = {}
    for way, name in LAYERS.items():
        for row in rows:
            if us := peer_us(row["us"], way, part):
                found.setdefault(name, {})[row["tokens"]] = layer_flops(row, part) / us / 1e6
    return found


def peer_us(us: Mapping[str, float], peer: str, part: str) -> float | None:
    """The time of a peer's pass in a record of the layer; None without one. transformers has two ways, and takes the
    one in batches for one token."""
    ways = (peer, "batched") if peer == "transformers" else (peer,)
    return min((us[f"{way} {part}"] for way in ways if f"{way} {part}" in us), default=None)


def layers_beside_peers(results: Mapping, part: str) -> dict[str, dict[str, float]]:
    """How many times as fast as transformers' operations each way was: title of the row → way → ratio.

    Layers are timed as called. "its products alone", in a CUDA graph, is what a layer could reach.

    Args:
        results: the record of the MoE layer; rows without transformers' time are left out.
        part: "forward" or "step".
    """
    found = {}
    for row in results["rows"]:
        us = row["us"]
        if base := peer_us(us, "transformers", part):
            ways = ((name, peer_us(us, way, part)) for way, name in LAYERS.items())
            found[layer_title(row)] = {name: base / time for name, time in ways if time}
    return found


def layer_gains(rows: Sequence[Mapping]) -> dict[str, dict[int, float]]:
    """How many times as fast the library's layer was as transformers' operations, forward, both as called.

    Args:
        rows: as from ``layer_rows``; those without both times are left out.

    Returns:
        "<routing>, recorded" → tokens → ratio.
    """
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        us = row["us"]
        if "ours forward" in us and (theirs := peer_us(us, "transformers", "forward")):
            ratios = found.setdefault(f"{row['routing'].replace('zipf', 'Zipf')}, recorded", {})
            ratios[row["tokens"]] = theirs / us["ours forward"]
    return found


def layer_overheads(rows: Sequence[Mapping], part: str) -> dict[str, dict[int, float]]:
    """How many times as long each layer takes as its own grouped products alone: way → tokens → ratio.

    Products and ours are timed as CUDA graphs, peers as called.

    Args:
        rows: as from ``layer_rows``; of one routing.
        part: "forward" or "step".
    """
    names = {"transformers": "fifteen operations", "liger": "Liger", "graph": "this library"}
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        us = row["us"]
        for way, name in names.items():
            if f"{way} {part}" in us:
                found.setdefault(name, {})[row["tokens"]] = us[f"{way} {part}"] / us[f"products {part}"]
    return found


def parallel_record() -> Mapping | None:
    """The record of expert parallelism, that of H100s if there are two; None without one."""
    for name in ("expert_parallel_h100", "expert_parallel"):
        with contextlib.suppress(FileNotFoundError):
            return record.load(name)
    return None


def parallel_rows(results: Mapping | None = None) -> list[dict]:
    """The rows of a record of expert parallelism; none without a record.

    Args:
        results: the record; that of ``parallel_record`` by default.
    """
    return (results or parallel_record() or dict(rows=[]))["rows"]


def parallel_times(model: str, ranks: int, tokens: int, routing: str, results: Mapping | None = None) -> dict:
    """Microseconds of the forward of a layer over several GPUs, on the slowest rank; empty if it is not recorded.

    Args:
        model: its name in ``course_kernels.bench.zoo``.
        ranks: GPUs.
        tokens: of each GPU.
        routing: "uniform" or "zipf".
        results: as for ``parallel_rows``.

    Returns:
        Way → microseconds.
    """
    wanted = dict(model=model, ranks=ranks, tokens=tokens, routing=routing)
    rows = (row for row in parallel_rows(results) if wanted.items() <= row.items())
    return {row["way"]: row["forward_us"] for row in rows}


def parallel_panels(tokens: int, results: Mapping | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """Microseconds of every recorded layer of as many tokens a GPU, for a drawing.

    Args:
        tokens: of each GPU.
        results: as for ``parallel_rows``.

    Returns:
        "<model>, <routing>" → "<ranks> GPUs" → way → microseconds. Ways are "by hand", "all_to_all", "overlapped" and
        "symmetric", as far as they are recorded, and "no exchange": the layer alone, on the rows that arrive. By hand
        is with this library's products. A panel's layers have different numbers of GPUs, the fewest first.
    """
    names = {
        "by hand, our products": "by hand", "all_to_all": "all_to_all", "symmetric": "symmetric",
        "the layer alone, on the rows that arrive": "no exchange",
    }  # fmt: skip
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in sorted(parallel_rows(results), key=lambda row: row["ranks"]):
        way = "overlapped" if row["way"].endswith(" chunks") else names.get(row["way"])
        if row["tokens"] == tokens and way:
            panel = found.setdefault(f"{row['model']}, {row['routing'].replace('zipf', 'Zipf')}", {})
            panel.setdefault(f"{row['ranks']} GPUs", {})[way] = row["forward_us"]
    return found


def weak_scaling(
    model: str, tokens: int, routing: str, part: str, results: Mapping | None = None
) -> dict[str, dict[int, float]]:
    """Tokens a second of several GPUs, each with as many tokens, over those of one GPU that has all experts; both as
    called, or both in a graph.

    Args:
        model: its name in ``course_kernels.bench.zoo``.
        tokens: of each GPU.
        routing: "uniform" or "zipf".
        part: "forward" or "step".
        results: as for ``parallel_rows``.

    Returns:
        Way → GPUs → ratio, 1 for one GPU. Ways are "by hand" (with this library's products), "all_to_all", "symmetric"
        and "symmetric, in a graph", as far as they are recorded.
    """
    names = {
        "by hand, our products": "by hand", "all_to_all": "all_to_all", "symmetric": "symmetric",
        "symmetric, in a graph": "symmetric, in a graph",
    }  # fmt: skip
    key = {"forward": "forward_us", "step": "both_us"}[part]
    wanted = dict(model=model, tokens=tokens, routing=routing)
    rows = [row for row in parallel_rows(results) if wanted.items() <= row.items() and row[key]]
    us = {(row["ranks"], row["way"]): row[key] for row in rows}
    found: dict[str, dict[int, float]] = {}
    for way, name in names.items():
        one = "one GPU, all experts, its tokens" + (", in a graph" if way.endswith(", in a graph") else "")
        ranks = sorted(each for each, found_way in us if found_way == way and (each, one) in us)
        if ranks:
            found[name] = {1: 1.0} | {each: each * us[each, one] / us[each, way] for each in ranks}
    return found
