"""Measurements of the packed API, ``grouped_mm``: what `course bench` prints, as a record."""

from __future__ import annotations

from course_kernels.bench import command, grouped, providers
from course_kernels.bench.rows import by_name


def rows() -> dict:
    """Every row and variant by every provider that is installed; a wrong or failed result of ours is an error."""
    present = providers.select(None)
    roles = {provider.name: provider.role for provider in present}
    results = grouped.measure(
        list(by_name().values()),
        present,
        tell=lambda row, entry: print(command.table(row, entry, roles), flush=True),
    )
    print(command.closing(results), flush=True)
    if wrong := command.failures_of_ours(results):
        raise AssertionError("wrong or failed:\n" + "\n".join(wrong))
    if not any(about["role"] == "ours" and "absent" not in about for about in results["providers"].values()):
        raise RuntimeError("no backend of grouped_mm was there to be measured")
    return results
