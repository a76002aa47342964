"""Measurements of ``scaled_grouped_mm``: rows with float8 operands, and the error of every provider's sums."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from course_kernels.bench import grouped, report, scaled
from course_kernels.bench.interface import Provider, one_line
from course_kernels.bench.measured import Results
from course_kernels.bench.operands import make_operands
from course_kernels.bench.rows import Row, by_name
from course_kernels.bench.tuning import cute_sweep

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
    exact, found = torch.cat(list(operands.exact("forward"))), {}
    for provider in providers:
        if provider.role == "ceiling" or provider.unavailable():
            continue
        try:
            candidates = provider.prepare(operands).forward
            if not candidates:
                continue
            result = next(iter(candidates.values()))()
        except Exception as error:
            found[provider.name] = one_line(error)
            continue
        error = result.double() / exact - 1
        found[provider.name] = {"mean": float(f"{error.mean():.2e}"), "largest": float(f"{error.abs().max():.2e}")}
    return found


def rows(keep: Callable[[Results], object] | None = None) -> dict:
    """All rows by all providers of scaled products and all configurations of the kernel in CuTe DSL.

    A wrong or failed result of ours is an error; one of a configuration is noted.
    """
    table = by_name()
    present = [
        scaled.OursScaled("auto"),
        *scaled.providers(),
        *map(cute_sweep.Configured, cute_sweep.SWEPT_8_BIT),
    ]
    results = grouped.measure(
        list(table.values()),
        present,
        passes=("forward", "called"),
        dtype=scaled.DTYPE,
        tell=lambda measured: print(cute_sweep.ranking(measured.row, measured.as_json()), flush=True),
        keep=keep,
    )
    found = results.as_json()
    found["regrets"] = cute_sweep.regrets(table, found["rows"], scaled.DTYPE.itemsize)
    found["losses"] = losses(present)
    for what in ("regrets", "losses"):
        print(what, *found[what].items(), sep="\n  ", flush=True)
    report.require_correct(results)
    return found
