"""Numbers that lessons and pages show about the layer of experts: its times on one GPU and on several, as recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from course_kernels.bench import record

# Ways to compute a layer in the record of the MoE layer, all as called but the products, and their names in figures.
LAYERS = {
    "products": "its products alone",
    "ours": "this library",
    "liger": "Liger",
    "transformers": "transformers",
}
PARALLEL = "expert_parallel", "expert_parallel_x4"  # records of two GPUs, and of four


def measured() -> Mapping:
    """The record of the MoE layer; one without rows if there is none yet."""
    with contextlib.suppress(FileNotFoundError):
        return record.load("moe")
    return {"rows": []}


def rows_of(model: str, results: Mapping | None = None) -> list[dict]:
    """The rows of a model in the record of the MoE layer, by tokens; none if there is no record yet.

    Args:
        model: its name in ``course_kernels.bench.zoo``.
        results: the record; that of ``measured`` by default.
    """
    rows = (measured() if results is None else results)["rows"]
    return sorted((row for row in rows if row["model"] == model), key=lambda row: row["tokens"])


def title(row: Mapping) -> str:
    """A row of the record of the MoE layer in words: its model, tokens, and routing unless it is uniform."""
    zipf = " (Zipf)" if row["routing"] == "zipf" else ""
    return f"{row['model']}, {row['tokens']:,} token{'s' * (row['tokens'] > 1)}{zipf}"


def flops(row: Mapping, part: str) -> int:
    """FLOP of the products of a row of the record of the MoE layer, forward or in a step."""
    return 6 * row["tokens"] * row["k"] * row["H"] * row["I"] * (3 if part == "step" else 1)


def rates(rows: Sequence[Mapping], part: str) -> dict[str, dict[int, float]]:
    """TFLOP/s of each way to compute a layer: way → tokens → rate. Only the products alone are timed in a CUDA graph.

    Args:
        rows: as from ``rows_of``; of one routing.
        part: "forward" or "step".
    """
    found: dict[str, dict[int, float]] = {}
    for way, name in LAYERS.items():
        for row in rows:
            if us := peer_us(row["us"], way, part):
                found.setdefault(name, {})[row["tokens"]] = flops(row, part) / us / 1e6
    return found


def peer_us(us: Mapping[str, float], peer: str, part: str) -> float | None:
    """The time of a peer's pass in a record of the layer; None without one. transformers has two ways, and takes the
    one in batches for one token."""
    ways = (peer, "batched") if peer == "transformers" else (peer,)
    return min((us[f"{way} {part}"] for way in ways if f"{way} {part}" in us), default=None)


def beside_peers(results: Mapping, part: str) -> dict[str, dict[str, float]]:
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
            found[title(row)] = {name: base / time for name, time in ways if time}
    return found


def gains(rows: Sequence[Mapping]) -> dict[str, dict[int, float]]:
    """How many times as fast the library's layer was as transformers' operations, forward, both as called.

    Args:
        rows: as from ``rows_of``; those without both times are left out.

    Returns:
        "<routing> routing, recorded" → tokens → ratio.
    """
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        us = row["us"]
        if "ours forward" in us and (theirs := peer_us(us, "transformers", "forward")):
            ratios = found.setdefault(f"{row['routing'].replace('zipf', 'Zipf')} routing, recorded", {})
            ratios[row["tokens"]] = theirs / us["ours forward"]
    return found


def forward_gains(results: Mapping, peer: str) -> dict[str, dict[int, float]]:
    """How many times as fast as a peer the layer's forward was, both in CUDA graphs: model → tokens → ratio.

    Args:
        results: the record of forwards.
        peer: "flashinfer", "products", or "transformers", the faster one of whose two ways counts.
    """
    ways = {"transformers": ("transformers", "batched")}.get(peer, (peer,))
    found: dict[str, dict[int, float]] = {}
    for row in results["rows"]:
        if times := [row["us"][way] for way in ways if way in row["us"]]:
            found.setdefault(row["model"], {})[row["tokens"]] = min(times) / row["us"]["ours"]
    return found


def overheads(rows: Sequence[Mapping], part: str) -> dict[str, dict[int, float]]:
    """How many times as long each layer takes as its own grouped products alone: way → tokens → ratio.

    Products are timed as a CUDA graph, layers as called.

    Args:
        rows: as from ``rows_of``; of one routing.
        part: "forward" or "step".
    """
    names = {"transformers": "fifteen operations", "liger": "Liger", "ours": "this library"}
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        us = row["us"]
        for way, name in names.items():
            if f"{way} {part}" in us:
                found.setdefault(name, {})[row["tokens"]] = us[f"{way} {part}"] / us[f"products {part}"]
    return found


def parallel_records() -> list[Mapping]:
    """The records of expert parallelism that there are, of two GPUs and of four."""
    found = []
    for name in PARALLEL:
        with contextlib.suppress(FileNotFoundError):
            found.append(record.load(name))
    return found


def parallel_rows(results: Mapping | None = None) -> list[dict]:
    """The rows of a record of expert parallelism; none without a record.

    Args:
        results: the record; all of ``parallel_records`` by default.
    """
    return [row for each in ([results] if results else parallel_records()) for row in each["rows"]]


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
