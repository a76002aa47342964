"""Tune the Helion kernels of the jagged products on this machine's GPU, and write the table that the library reads.

    python benchmarks/helion_tune.py                          every row of the record "jagged", both kernels
    python benchmarks/helion_tune.py --seconds 120 square     longer, for one row
    python benchmarks/helion_tune.py --out FILE --commit ID   elsewhere; with the commit where there is no git checkout

It needs the extra `helion`. Helion's search needs scikit-learn, which that extra installs and the library does not use;
HELION_AUTOTUNER=PatternSearch searches without it. Helion's own autotuner searches until the time is up. Its result is
verified, and timed against the shape's earlier configuration in the table: the faster one is kept. Entries of other
shapes stay. The table is written after each shape, so an interrupted run keeps its results.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

import torch

from course_kernels import runtime
from course_kernels.bench import jagged, record, timing
from course_kernels.bench.operands import make_operands
from course_kernels.bench.verification import count_wrong
from course_kernels.jagged import tuned

DEPENDS_ON = ("course_kernels/jagged/helion_kernels.py",)
KERNELS = ("persistent", "simple")

Search = Callable[[str, tuple, dict], dict]
Clock = Callable[[dict[str, Callable]], dict[str, float]]


# Tiles, warps and stages with which a search begins beside the present configuration. From Helion's default alone,
# tiles of 16×16×16, a search of 18 s found nothing better.
STARTS = (
    ([128, 128, 64], 8, 3), ([128, 128, 64], 4, 4), ([128, 256, 64], 8, 4), ([64, 128, 64], 4, 4), ([64, 64, 64], 4, 4),
    ([32, 64, 64], 4, 4), ([64, 128, 128], 4, 3),
)  # fmt: skip


def search(kernel: str, operands: tuple, present: dict) -> dict:
    """The configuration that Helion's autotuner finds for operands (A_packed, B, group_offsets), beginning at the
    present one and at ``STARTS``."""
    import helion

    from course_kernels.jagged import helion_kernels

    untuned = helion_kernels.make_kernel(kernel, *operands[:2])
    tiles = [dict(block_sizes=blocks, num_warps=warps, num_stages=stages) for blocks, warps, stages in STARTS]
    untuned.settings.autotune_seed_configs = tuple(helion.Config(**(present | each)) for each in ({}, *tiles))
    arguments = helion_kernels.arguments(kernel, *operands)
    return dict(untuned.bind(arguments).autotune(arguments, force=True))


def median_us(functions: dict[str, Callable]) -> dict[str, float]:
    """Median µs of functions, each in a CUDA graph, in turn."""
    graphs = {name: timing.capture(function).replay for name, function in functions.items()}
    times = timing.interleaved_us(graphs, 30)
    return {name: round(statistics.median(values), 2) for name, values in times.items()}


def tune_row(
    row: jagged.SharedRow, kernel: str, device, dtype: torch.dtype, search: Search, clock: Clock
) -> tuned.Entry:
    """The best configuration for a row: what the search finds, or the present one where that is as fast.

    Raises:
        AssertionError: the found configuration gives a wrong result.
    """
    from course_kernels.jagged import helion_kernels

    shared, B, offsets = jagged.operands_of(make_operands(row, device, dtype))
    operands, extents = (shared.a, B, offsets), (row.total_m, row.N, row.K, row.groups)
    present = tuned.find_config(kernel, *extents, dtype, runtime.Device.of(shared.a.device).arch)
    found = search(kernel, operands, present)

    def call(config: dict) -> Callable:
        return lambda: helion_kernels.multiply(kernel, *operands, config)

    exact = shared.a.double() @ B.double()
    (wrong,) = count_wrong([call(found)()], [exact], torch.finfo(dtype).eps)
    assert not wrong, f"{row.name}, {kernel}: {wrong} of {exact.numel()} elements are wrong with {found}"
    del exact
    us = clock({"present": call(present), "found": call(found)})
    best = min(us, key=us.get)
    print(f"{row.name}, {kernel}: {us['found']} µs found, {us['present']} µs before", flush=True)
    return tuned.Entry(kernel, tuned.table_dtype(dtype), extents, us[best], {"found": found, "present": present}[best])


def merged(old: Sequence[tuned.Entry], new: Sequence[tuned.Entry]) -> list[tuned.Entry]:
    """The new entries, and the old ones of other shapes that were measured."""
    replaced = {entry[:3] for entry in new}
    return sorted([*new, *(entry for entry in old if entry.us is not None and entry[:3] not in replaced)], key=_order)


def _order(entry: tuned.Entry) -> tuple:
    return entry[:3]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in jagged.rows()]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(names)}")
    parser.add_argument("--kernel", choices=KERNELS, action="append", help="default: both")
    parser.add_argument("--seconds", type=int, default=60, help="for each row and kernel (default: 60)")
    parser.add_argument("--effort", choices=("quick", "full"), default="full", help="of Helion's autotuner")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--commit", help="commit of the code in full, where it cannot be asked of git")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.rows if name not in names]:
        parser.error(f"no row {', '.join(unknown)}; there are: {', '.join(names)}")
    if not torch.cuda.is_available():
        parser.error("configurations are measured on a GPU, and torch sees none")
    if (capability := runtime.capability()) is None:
        parser.error("tables are for NVIDIA GPUs")
    # Read when a kernel is made.
    os.environ["HELION_AUTOTUNE_BUDGET_SECONDS"] = str(arguments.seconds)
    os.environ["HELION_AUTOTUNE_EFFORT"] = arguments.effort
    arch = "sm_{}{}".format(*capability)
    path = arguments.out or tuned.TABLES / f"{arch}.json"
    old, new = tuned.read_table(arch), []
    start = time.time()
    for row in jagged.rows():
        for kernel in arguments.kernel or KERNELS:
            if arguments.rows and row.name not in arguments.rows:
                continue
            new.append(tune_row(row, kernel, "cuda", torch.bfloat16, search, median_us))
            table = {
                "helion": importlib.metadata.version("helion"),
                "seconds": arguments.seconds,
                "effort": arguments.effort,
                "entries": [entry._asdict() for entry in merged(old, new)],
            }
            record.write(path, table, record.provenance(arguments.commit, DEPENDS_ON))
    print(f"{path}: {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
