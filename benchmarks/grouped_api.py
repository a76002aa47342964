"""Measurements of the packed API, ``grouped_mm``: what `course bench` prints, as a record."""

from __future__ import annotations

from collections.abc import Callable

from course_kernels.bench import gpu_timer, grouped, providers, report
from course_kernels.bench.measured import Results
from course_kernels.bench.rows import by_name
from course_kernels.bench.tuning import cute_sweep

REPEATS = 100  # in 40, medians of rows at the power limit were up to 0.5 % apart
LARGE = 5e11  # rows of so many multiplications and additions keep the GPU at its power limit


def rows(keep: Callable[[Results], object] | None = None) -> dict:
    """All rows by all providers that are installed; a wrong or failed result of ours is an error."""
    present = [providers.Ours("auto"), *providers.select(None)]
    roles = {provider.name: provider.role for provider in present}
    results = grouped.measure(
        list(by_name().values()),
        present,
        repeats=REPEATS,
        tell=lambda measured: print(report.table(measured, roles), flush=True),
        keep=keep,
    )
    print(report.closing(results), flush=True)
    return report.require_correct(results).as_json()


def sustained(keep: Callable[[Results], object] | None = None) -> dict:
    """Forward of large rows, each provider by itself back to back; also the tall configurations of our CuTe DSL kernel,
    and the cost of choosing among them."""
    table = {name: row for name, row in by_name().items() if row.kind == "compute" and row.flops >= LARGE}
    present = [provider for provider in providers.select(None) if provider.name not in ("loop", "tutorial")]
    present.insert(0, providers.Ours("auto"))
    present += [cute_sweep.Configured(config) for config in cute_sweep.SWEPT if config.tile_m >= 128]
    results = grouped.measure(
        list(table.values()),
        present,
        passes=("forward",),
        repeats=7,
        timer=gpu_timer.SustainedTimer(),
        tell=lambda measured: print(cute_sweep.ranking(measured.row, measured.as_json()), flush=True),
        keep=keep,
    )
    found = report.require_correct(results).as_json()
    return found | {"regrets": cute_sweep.regrets(table, found["rows"])}
