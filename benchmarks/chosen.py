"""Compare the time model's configurations for batches and masked groups with those of the earlier table.

    python benchmarks/chosen.py     on a Hopper GPU; a minute

Both the table and the model's constants were measured with ragged rows. Each line has the old and the new time in µs,
measured by CUDA graphs with the L2 cache overwritten, and the ratio new / old.
"""

from __future__ import annotations

import math
import pathlib
import statistics
import sys
from collections.abc import Callable
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

import torch

import course_kernels as ck
from course_kernels import runtime
from course_kernels.bench import timing
from course_kernels.dtypes import FP8
from course_kernels.engine.tuning import Extents, Gpu, Kind, choose
from course_kernels.engine.tuning.fallback_rules import rows_class
from course_kernels.kernels.codes import Scales

REPEATS = 31


class Row(NamedTuple):
    """A product: rows of every group, extents, scaling, and its configuration in the earlier table."""

    along: str
    rows: int
    N: int
    K: int
    G: int
    scaling: int
    before: tuple[int, ...]

    @property
    def kind(self) -> Kind:
        """The kind of product, as ``choose`` takes it."""
        return Kind(self.along, "k", 1 if self.scaling else 2, Scales(self.scaling))


ROWS = (
    Row("batch", 4, 4096, 4096, 32, 0, (16, 64, 128, 4, 5, 1, 2, 1)),
    Row("batch", 16, 2048, 4096, 128, 0, (16, 128, 128, 4, 4, 1, 1, 1)),
    Row("batch", 32, 4096, 2048, 64, 0, (32, 128, 128, 4, 4, 1, 1, 1)),
    Row("batch", 64, 8192, 2048, 16, 0, (64, 128, 128, 4, 4, 1, 1, 1)),
    Row("batch", 128, 2048, 2048, 64, 0, (128, 256, 64, 8, 4, 4, 1, 2)),
    Row("batch", 256, 4096, 4096, 16, 0, (128, 256, 64, 8, 4, 8, 1, 2)),
    Row("batch", 512, 1024, 4096, 128, 0, (128, 128, 64, 4, 3, 4, 2, 2)),
    Row("batch", 1024, 4096, 1024, 32, 0, (128, 256, 64, 8, 4, 8, 1, 2)),
    Row("batch", 4096, 4096, 4096, 8, 0, (128, 128, 64, 4, 3, 8, 2, 2)),
    Row("masked", 4, 4096, 7168, 32, 0, (16, 128, 128, 4, 4, 1, 1, 1)),
    Row("masked", 16, 4096, 7168, 32, 0, (16, 128, 128, 4, 4, 1, 1, 1)),
    Row("masked", 32, 4096, 2048, 64, 0, (32, 128, 128, 4, 4, 1, 1, 1)),
    Row("masked", 64, 7168, 2048, 32, 0, (64, 128, 128, 4, 4, 1, 1, 1)),
    Row("masked", 256, 4096, 4096, 16, 0, (128, 256, 64, 8, 4, 8, 1, 2)),
    Row("masked", 1024, 7168, 2048, 8, 0, (128, 256, 64, 8, 4, 8, 1, 2)),
    Row("masked", 16, 4096, 7168, 32, 1, (16, 128, 128, 4, 5, 1, 1, 1)),
    Row("masked", 64, 7168, 2048, 32, 1, (64, 128, 128, 4, 4, 1, 1, 1)),
    Row("masked", 1024, 4096, 7168, 8, 1, (128, 128, 128, 4, 3, 8, 2, 2)),
    Row("masked", 16, 4096, 7168, 32, 2, (16, 128, 128, 4, 5, 1, 1, 1)),
    Row("masked", 64, 7168, 2048, 32, 2, (64, 128, 128, 4, 4, 1, 1, 1)),
    Row("masked", 1024, 4096, 7168, 8, 2, (128, 128, 128, 8, 3, 8, 1, 1)),
)


def new_config(row: Row, gpu: Gpu) -> ck.GemmConfig:
    """The configuration that the time model chooses."""
    rows = row.rows if row.along == "batch" else rows_class(row.rows)
    return choose(row.kind, Extents(rows, row.N, row.K, row.G), gpu).config


def product(row: Row, config: ck.GemmConfig, device: str = "cuda") -> Callable[[], object]:
    """A function that computes the row by the Triton kernel with this configuration."""
    dtype = FP8 if row.scaling else torch.bfloat16
    a, w = (torch.randn(row.G, lines, row.K, device=device).to(dtype) for lines in (row.rows, row.N))
    if row.along == "batch":
        return lambda: ck.grouped_mm(a, w.mT, backend="triton", config=config)
    y = torch.empty(row.G, row.rows, row.N, dtype=torch.bfloat16, device=device)
    sizes = torch.full((row.G,), row.rows, dtype=torch.int32, device=device)
    scales: tuple = ()
    if row.scaling == Scales.LINES:
        scales = torch.ones(row.G, row.rows, device=device), torch.ones(row.G, row.N, device=device)
    elif row.scaling == Scales.BLOCKS:
        deep, wide = -(-row.K // 128), -(-row.N // 128)
        scales = torch.ones(row.G, row.rows, deep, device=device), torch.ones(row.G, wide, deep, device=device)
    return lambda: ck.deepgemm(a, w, y, sizes, *scales, backend="triton", config=config)


def main() -> None:
    """Command line."""
    gpu, ratios = Gpu.of(runtime.Device.of(runtime.device())), {}
    for row in ROWS:
        configs = {"before": ck.GemmConfig(*row.before), "now": new_config(row, gpu)}
        us = dict.fromkeys(configs, 1.0)
        if configs["before"] != configs["now"]:
            graphs = {name: timing.capture(product(row, config)).replay for name, config in configs.items()}
            us = {name: statistics.median(each) for name, each in timing.interleaved_us(graphs, REPEATS).items()}
            del graphs
        ratio = us["now"] / us["before"]
        ratios.setdefault(row.along, []).append(ratio)
        blocks = " → ".join(
            "×".join(map(str, (*config.block, config.num_stages, config.programs_per_sm)))
            for config in configs.values()
        )
        same = configs["before"] == configs["now"]
        told = "the same" if same else f"{us['before']:8.1f} → {us['now']:8.1f} us, {ratio:.3f}"
        print(f"{row.kind!s:18} {row.G:4} × {row.rows:5} × {row.N:5} × {row.K:5}: {told}  {blocks}", flush=True)
        torch.cuda.empty_cache()
    for along, each in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, each)))
        print(f"{along}: {len(each)} products, geometric mean {mean:.4f}, worst {max(each):.3f}")


if __name__ == "__main__":
    main()
