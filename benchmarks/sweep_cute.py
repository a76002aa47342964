"""Every configuration of the kernel in CuTe DSL on every row: the data for the rules of ``packed.backends.cute``."""

from __future__ import annotations

from course_kernels.bench import configurations, grouped, providers
from course_kernels.bench.rows import by_name


def rows() -> dict:
    """Forward and both gradients, and torch and a dense product for comparison.

    A configuration that is wrong or fails is noted, and has no times.
    """
    table = by_name()
    present = [*map(configurations.Configured, configurations.SWEPT), providers.Torch(), providers.Dense()]
    results = grouped.measure(
        list(table.values()),
        present,
        passes=("forward", "dA", "dB"),
        tell=lambda row, entry: print(configurations.ranking(row, entry), flush=True),
    )
    results["regrets"] = configurations.regrets(table, results["rows"])
    print("regrets", *results["regrets"].items(), sep="\n  ", flush=True)
    return results
