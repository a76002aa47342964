"""Measure each configuration of the kernel in CuTe DSL by itself, and compare the chosen one with the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from course_kernels import runtime
from course_kernels.bench.interface import Calls
from course_kernels.bench.operands import Operands
from course_kernels.bench.providers import Ours
from course_kernels.bench.rows import Row
from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Product, typical_rows
from course_kernels.engine.tuning import Gpu
from course_kernels.engine.tuning.gpu_distance import UNKNOWN_BANDWIDTH
from course_kernels.kernels.cute_sm90.config import (
    CONFIGS,
    CONFIGS_8_BIT,
    CONFIGS_ALONG_K,
    COOPERATIVE,
    PINGPONG,
    CuteConfig,
)
from course_kernels.kernels.cute_sm90.form import Form

__all__ = ["SWEPT", "SWEPT_8_BIT", "Configured", "chosen", "ranking", "regrets"]

# Configurations that are not shipped: without narrow or flat tiles; without a split last wave; two more widths of 64
# rows; and the tiles that read least, which do not overlap their stores with work.
_MORE = (
    CuteConfig(128, 192, 64, 2, 5, PINGPONG),
    *(replace(config, split_last_wave=False) for config in CONFIGS if config.split_last_wave),
    CuteConfig(64, 256, 64, 1, 4, PINGPONG),
    CuteConfig(64, 192, 64, 1, 6, PINGPONG),
    CuteConfig(256, 192, 64, 2, 3, COOPERATIVE, swizzle_size=4),
)
SWEPT = tuple(dict.fromkeys((*CONFIGS, *CONFIGS_ALONG_K, *_MORE)))
SWEPT_8_BIT = (
    *CONFIGS_8_BIT,
    CuteConfig(64, 192, 128, 1, 6, PINGPONG),
    CuteConfig(64, 256, 128, 2, 4, PINGPONG),
)


class Configured(Ours):
    """The kernel in CuTe DSL in one configuration, for all operands."""

    role = "candidate"

    def __init__(self, config: CuteConfig):
        super().__init__("cute")
        self.config, self.name, self.label = config, config.name, f"cute, {config.name}"

    def _suits(self, along: str, few_rows: bool) -> bool:
        """Whether the configuration may be the fastest.

        A group of few rows leaves most of a tall tile empty. Low tiles read too much for many rows, unless they form a
        cluster, and are not for groups along "k".
        """
        tall = self.config.tile_m >= 128
        if along == "k":
            return tall and not self.config.tail_tile_n and not self.config.split_last_wave
        return not tall if few_rows else tall or self.config.cluster > 1

    def prepare(self, operands: Operands) -> Calls:
        """Prepare the passes that the kernel can compute, if the configuration may be the fastest."""
        o = operands
        few_rows = sum(o.sizes) <= cute.FEW_ROWS * len(o.sizes)

        def candidate(mat_a: Tensor, mat_b: Tensor, out: Tensor, **scales) -> dict[str, Callable[[], Tensor]]:
            form = cute.match_form(Product.packed(mat_a, mat_b, o.offs, **scales), out)
            if form is None or not self._suits(form.along, few_rows):
                return {}

            def run() -> Tensor:
                cute.multiply(Product.packed(mat_a, mat_b, o.offs, **scales), out, form, self.config)
                return out

            return {"": run}

        if o.scale_a is not None:
            return Calls(candidate(o.a, o.weight.mT, o.out, scale_a=o.scale_a, scale_b=o.scale_b))
        return Calls(
            forward=candidate(o.a, o.weight.mT, o.out),
            d_a=candidate(o.d_out, o.weight, o.d_a),
            d_b=candidate(o.d_out.mT, o.a, o.d_weight),
        )


def ranking(row: Row, entry: Mapping) -> str:
    """Rates of a row that `grouped.measure` measured: a line for each pass, the fastest first; then the failures."""
    lines, digits = [f"{row.name}: {row.title} ({row.unit})"], 0 if row.kind == "compute" else 2
    for pass_name, rate in entry["rate"].items():
        cells = (f"{name} {rate[name]:.{digits}f}" for name in sorted(rate, key=rate.get, reverse=True))
        lines.append(f"  {pass_name}: " + ", ".join(cells))
    for name, failed in entry["failed"].items():
        lines += [f"  ! {name} failed, {step}: {reason}" for step, reason in failed.items()]
    return "\n".join(lines)


def chosen(row: Row, pass_name: str, operand_bytes: int = 2) -> CuteConfig:
    """The configuration that the library chooses for a pass of a row."""
    scaling = "lines" if operand_bytes == 1 else "none"
    form, size, depth = {
        "forward": (Form("m", "k", operand_bytes, scaling=scaling), (row.total_m, row.N), row.K),
        "dA": (Form("m", "n"), (row.total_m, row.K), row.N),
        "dB": (Form("k", "n"), (row.N, row.K), row.total_m),
    }[pass_name]
    gpu = cute.gpu_of(runtime.device()) or Gpu("sm_90", 132, UNKNOWN_BANDWIDTH)
    return cute.choose(form, typical_rows(row.total_m, row.groups), size, depth, row.groups, gpu)


def regrets(rows: Mapping[str, Row], entries: Mapping[str, Mapping], operand_bytes: int = 2) -> dict:
    """Compare the chosen configuration with the best one, for each row and pass.

    Args:
        rows, entries: by name of the row; entries of `grouped.measure`, with configurations as providers.

    Returns:
        row → pass → {"best", "chosen", "times"}: two names, and the chosen one's time over the best one's, or None if
        the chosen one was not measured. A pass without measured configurations has no entry.
    """
    names = {config.name for config in (*SWEPT, *SWEPT_8_BIT)}
    found: dict = {}
    for name, entry in entries.items():
        for pass_name, by_provider in entry["us"].items():
            times = {provider: us["median_us"] for provider, us in by_provider.items() if provider in names}
            if pass_name == "called" or not times:
                continue
            best, choice = min(times, key=times.get), chosen(rows[name], pass_name, operand_bytes).name
            ratio = round(times[choice] / times[best], 3) if choice in times else None
            found.setdefault(name, {})[pass_name] = {"best": best, "chosen": choice, "times": ratio}
    return found
