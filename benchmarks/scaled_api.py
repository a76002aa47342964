"""Measurements of ``scaled_grouped_mm``: rows with float8 operands, and the error of every provider's sums."""

from __future__ import annotations

import dataclasses
import itertools

import torch

from course_kernels.bench import grouped, scaled
from course_kernels.bench.interface import Provider, make_operands
from course_kernels.bench.rows import Row, by_name
from course_kernels.bench.tuning import configured
from gemm_course.cli import bench as command

# Long sums of positive numbers, in which truncation errors add up.
LONG = Row("long", "256 over 3, one empty, 512, 7168", (100, 0, 156), 512, 7168, "compute")


def losses(providers: list[Provider], device: torch.device | str = "cuda") -> dict[str, dict[str, float] | str]:
    """Relative errors of long sums of positive numbers: provider → "mean" (the bias) and "largest", or why it failed.

    The results are bfloat16, whose rounding is an error of up to 2**-9.
    """
    operands = make_operands(LONG, device, scaled.DTYPE)
    generator = torch.Generator(device).manual_seed(1)

    def positive(shape) -> torch.Tensor:
        return torch.rand(shape, device=device, generator=generator).add_(0.5).to(scaled.DTYPE)

    operands = dataclasses.replace(operands, a=positive(operands.a.shape), weight=positive(operands.weight.shape))
    starts, parts = (0, *operands.offs.tolist()), []
    for g, (start, end) in enumerate(itertools.pairwise(starts)):
        factors = operands.scale_a[start:end, None].double() * operands.scale_b[g].double()
        parts.append(operands.a[start:end].double() @ operands.weight[g].double().mT * factors)
    exact, found = torch.cat(parts), {}
    for provider in providers:
        if provider.role == "ceiling" or provider.unavailable():
            continue
        try:
            candidates = provider.prepare(operands).forward
            if not candidates:
                continue
            result = next(iter(candidates.values()))()
        except Exception as error:
            found[provider.name] = f"{type(error).__name__}: {error}"[:200]
            continue
        error = result.double() / exact - 1
        found[provider.name] = {"mean": float(f"{error.mean():.2e}"), "largest": float(f"{error.abs().max():.2e}")}
    return found


def rows() -> dict:
    """All rows by all providers of scaled products and all configurations of the kernel in CuTe DSL.

    A wrong or failed result of ours is an error; one of a configuration is noted.
    """
    table = by_name()
    present = [
        scaled.OursScaled("auto"),
        *scaled.providers(),
        *map(configured.Configured, configured.SWEPT_8_BIT),
    ]
    results = grouped.measure(
        list(table.values()),
        present,
        passes=("forward", "called"),
        dtype=scaled.DTYPE,
        tell=lambda row, entry: print(configured.ranking(row, entry), flush=True),
    )
    results["regrets"] = configured.regrets(table, results["rows"], scaled.DTYPE.itemsize)
    results["losses"] = losses(present)
    for what in ("regrets", "losses"):
        print(what, *results[what].items(), sep="\n  ", flush=True)
    if wrong := command.failures_of_ours(results):
        raise AssertionError("wrong or failed:\n" + "\n".join(wrong))
    return results
