"""Measurements of products with one B for all groups: ours, Helion's configurations, torch, and one dense product."""

from __future__ import annotations

from collections.abc import Callable

from course_kernels.bench import grouped, jagged, report
from course_kernels.bench.measured import Results
from course_kernels.bench.tuning import cute_sweep

REPEATS = 60


def shares_of_dense(results: Results) -> dict[str, dict[str, float]]:
    """Row → provider → its speed over cuBLAS's on the packed rows, in CUDA graphs."""
    found = {}
    for name, measured in results.rows.items():
        times = measured.timings.medians_us("forward")
        dense = times.pop("cublas", None)
        if dense is not None:
            found[name] = {provider: round(dense / us, 3) for provider, us in times.items()}
    return found


def rows(keep: Callable[[Results], object] | None = None) -> dict:
    """All rows by all providers; a wrong or failed result of ours is an error. Providers without Helion are noted."""
    results = grouped.measure(
        jagged.rows(),
        jagged.providers(),
        passes=("forward", "called"),
        repeats=REPEATS,
        tell=lambda measured: print(cute_sweep.ranking(measured.row, measured.as_json()), flush=True),
        keep=keep,
    )
    shares = shares_of_dense(results)
    print("of dense", *shares.items(), sep="\n  ", flush=True)
    return report.require_correct(results).as_json() | {"of_dense": shares}
