"""Measure every configuration of both backends on many shapes: the data that the cost model is fitted to.

Shapes are those of published models with several numbers of tokens, and random ones beside them. A configuration that
cannot be the fastest, because its tiles would be nearly empty or because a group has dozens of them, is left out.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import grouped_mm
from course_kernels.bench import grouped, timing
from course_kernels.bench.interface import Operands, make_operands, one_line
from course_kernels.bench.rows import Row, jittered, zipf
from course_kernels.config import GemmConfig
from course_kernels.kernels.cute_sm90.config import CONFIGS, CONFIGS_ALONG_K, CuteConfig
from course_kernels.packed.backends import cute, cute_cache
from course_kernels.packed.problem import Operands as Product
from course_kernels.packed.tuning import time_model

__all__ = ["CUTE_K", "CUTE_M", "TRITON_K", "TRITON_M", "failures", "measure", "precompile", "random_rows"]

PASSES = ("forward", "dA", "dB")
KIND_OF_PASS = {"forward": "m,k", "dA": "m,n", "dB": "k,n"}  # as the time model names products
REPEATS = 7
DEVICE = "cuda"

CUTE_M = tuple(config for config in CONFIGS if not config.window)
CUTE_K = CONFIGS_ALONG_K
# block_m, block_n, block_k, warps, stages, strips of, programs an SM, parts of a store
TRITON_M = tuple(
    GemmConfig(*row)
    for row in (
        (128, 256, 64, 8, 4, 8, 1, 2), (64, 256, 64, 4, 4, 8, 1, 2), (64, 128, 64, 4, 3, 8, 2, 2),
        (64, 128, 128, 4, 3, 1, 1, 1), (32, 128, 128, 4, 4, 1, 1, 1),
        (16, 128, 128, 4, 4, 1, 1, 1), (16, 64, 128, 4, 5, 1, 2, 1),
    )
)  # fmt: skip
TRITON_K = tuple(
    GemmConfig(*row)
    for row in ((128, 256, 64, 8, 4, 8, 1, 2), (128, 128, 64, 4, 3, 4, 2, 2), (128, 128, 32, 4, 4, 4, 2, 2))
)


Config = CuteConfig | GemmConfig


def offered(kind: str) -> tuple[Config, ...]:
    """The configurations that the library may choose for products of a kind."""
    return (*CUTE_K, *TRITON_K) if kind[0] == "k" else (*CUTE_M, *TRITON_M)


def by_name(kind: str) -> dict[str, Config]:
    """``offered``, by the names that records know them by."""
    return {name_of(config): config for config in offered(kind)}


def name_of(config: Config) -> str:
    """Short name, for records."""
    if isinstance(config, CuteConfig):
        return f"cute {config.name}"
    c = config
    fields = c.block_m, c.block_n, c.block_k, c.num_warps, c.num_stages, c.group_m, c.programs_per_sm, c.store_parts
    return "triton " + "_".join(map(str, fields))


def random_rows(count: int, seed: int = 0, most_flops: float = 2e12, most_bytes: float = 8e9) -> list[Row]:
    """Shapes of no model: extents and numbers of groups drawn evenly on a logarithmic scale."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        groups = round(2 ** draw.uniform(1, 8))
        rows = 2 ** draw.uniform(0, 12.5)
        step = draw.choice((8, 64, 128))
        N, K = (max(2, round(2 ** draw.uniform(8.5, 14) / step)) * step for _ in range(2))
        total = max(1, round(groups * rows))
        sizes = zipf(groups, total, len(found)) if draw.random() < 0.5 else jittered(groups, rows, len(found))
        row = Row(f"random-{len(found)}", f"{groups} groups, {sum(sizes):,} rows, N {N}, K {K}", sizes, N, K, "compute")
        if sum(sizes) and row.flops <= most_flops and 2 * groups * N * K <= most_bytes:
            found.append(row)
    return found


def _compile(arguments: tuple) -> None:
    config, along, major, processors = arguments
    cute_cache.compiled(
        config, "bfloat16", "bfloat16", offsets_along=along, b_major=major, scaled=False, accumulate=False,
        block_scaled=False, multiprocessors=processors,
    )  # fmt: skip


def precompile(processors: int, among: Mapping[str, Sequence[Config]] | None = None, workers: int = 12) -> None:
    """Compile the kernels in CuTe DSL in other processes, which keep them in files.

    Args:
        processors: of the GPU.
        among: as for ``measure``.
    """
    among = among or {kind: offered(kind) for kind in time_model.KINDS}
    jobs = [
        (config, *kind.split(","), processors)
        for kind, configs in among.items()
        for config in configs
        if isinstance(config, CuteConfig)
    ]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(_compile, jobs))


class Candidate(NamedTuple):
    """A configuration, and the call that computes a pass with it."""

    name: str
    run: Callable[[], Tensor]


def candidates(o: Operands, pass_name: str, among: Sequence[Config] | None = None) -> Iterable[Candidate]:
    """The calls of a pass, by default with each configuration ``offered``; all write to the operands' buffers."""
    kind = KIND_OF_PASS[pass_name]
    mat_a, mat_b, out = {
        "forward": (o.a, o.weight.mT, o.out), "dA": (o.d_out, o.weight, o.d_a), "dB": (o.d_out.mT, o.a, o.d_weight),
    }[pass_name]  # fmt: skip
    rows = sum(o.sizes) / len(o.sizes)
    variant = cute.match_variant(Product(mat_a, mat_b, o.offs), out)
    for config in offered(kind) if among is None else among:
        if not time_model.suits(config, kind, rows) or (isinstance(config, CuteConfig) and not variant):
            continue

        def run(config: Config = config) -> Tensor:
            if isinstance(config, CuteConfig):
                cute.multiply(Product(mat_a, mat_b, o.offs), out, variant, config)
                return out
            return grouped_mm(mat_a, mat_b, offs=o.offs, out=out, backend="triton", config=config)

        yield Candidate(name_of(config), run)


def _unlike(result: Tensor, first: Tensor) -> bool:
    """Whether two results of one product differ by more than sums in another order do."""
    rms = first.float().square().mean().sqrt()
    within = (result.float() - first.float()).abs() <= (first.float().abs() + rms) * 2**-7
    return not bool(within.all())


def measure(
    rows: Sequence[Row],
    passes: Sequence[str] = PASSES,
    repeats: int = REPEATS,
    seconds: float = float("inf"),
    among: Mapping[str, Sequence[Config]] | None = None,
    tell: Callable[[str], object] = print,
) -> dict:
    """Times of all configurations.

    The first result of each pass is compared with float64 products, the others with the first.

    Args:
        rows, passes, repeats: what is measured, and how often.
        seconds: after them no row begins.
        among: the configurations for each kind of product; by default those ``offered``.
        tell: gets a line about each pass.

    Returns:
        row → {"sizes", "N", "K", pass → {"us": name → median, "failed": name → reason}}. Rows after ``seconds`` are
        left out.
    """
    found, began = {}, time.monotonic()
    for row in rows:
        if time.monotonic() - began > seconds:
            break
        operands = make_operands(row, DEVICE)
        entry = found[row.name] = {"title": row.title, "sizes": list(row.sizes), "N": row.N, "K": row.K}
        for pass_name in passes:
            graphs, failed, first = {}, {}, None
            for candidate in candidates(operands, pass_name, among and among[KIND_OF_PASS[pass_name]]):
                try:
                    graph = timing.capture(candidate.run, warmups=1)
                    result = candidate.run()
                    result.fill_(float("nan"))
                    graph.replay()
                    torch.cuda.synchronize()
                    if first is None:
                        grouped.verify(result, operands, pass_name)
                        first = result.clone()
                    elif _unlike(result, first):
                        raise grouped.WrongResult("differs from the first configuration's result")
                    graphs[candidate.name] = graph.replay
                except Exception as error:
                    failed[candidate.name] = one_line(error)
                    torch.cuda.synchronize()
            times = timing.interleaved_us(graphs, repeats) if graphs else {}
            medians = {name: round(statistics.median(each), 2) for name, each in times.items()}
            entry[pass_name] = {"us": medians, "failed": failed}
            if medians:
                best = min(medians, key=medians.get)
                tell(f"{row.name} {pass_name}: {best} {medians[best]} us, failed {len(failed)}")
            del graphs, first
        del operands
        torch.cuda.empty_cache()
    return found


def failures(found: Mapping[str, Mapping]) -> dict[str, dict[str, str]]:
    """What was wrong or failed in a ``measure``: row and pass → name → reason."""
    return {
        f"{name}, {of}": each["failed"]
        for name, entry in found.items()
        for of, each in entry.items()
        if of in KIND_OF_PASS and each["failed"]
    }
