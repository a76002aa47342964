"""Measurements of products with one B for all groups: ours, Helion's configurations, torch, and one dense product."""

from __future__ import annotations

from collections.abc import Mapping

from course_kernels.bench import grouped, jagged
from course_kernels.bench.tuning import configured
from gemm_course.cli import bench as command

REPEATS = 60


def shares_of_dense(rows: Mapping[str, Mapping]) -> dict[str, dict[str, float]]:
    """Row → provider → its speed over cuBLAS's on the packed rows, in CUDA graphs."""
    found = {}
    for name, entry in rows.items():
        times = {provider: us["median_us"] for provider, us in entry["us"]["forward"].items()}
        dense = times.pop("cublas", None)
        if dense is not None:
            found[name] = {provider: round(dense / us, 3) for provider, us in times.items()}
    return found


def rows() -> dict:
    """All rows by all providers; a wrong or failed result of ours is an error. Providers without Helion are noted."""
    results = grouped.measure(
        jagged.rows(),
        jagged.providers(),
        passes=("forward", "called"),
        repeats=REPEATS,
        tell=lambda row, entry: print(configured.ranking(row, entry), flush=True),
    )
    results["of_dense"] = shares_of_dense(results["rows"])
    print("of dense", *results["of_dense"].items(), sep="\n  ", flush=True)
    if wrong := command.failures_of_ours(results):
        raise AssertionError("wrong or failed:\n" + "\n".join(wrong))
    return results
