"""Measurements of the zoo: layers of published models: the product, both gradients, a step through autograd."""

from __future__ import annotations

from collections.abc import Callable

from course_kernels.bench import grouped, providers, report, zoo
from course_kernels.bench.measured import Results

REPEATS = 15
LEFT_OUT = ("loop", "dense")  # they take most of the time where there are hundreds of groups


def rows(keep: Callable[[Results], object] | None = None) -> dict:
    """The compact set by all providers that are installed; a wrong or failed result of ours is an error."""
    present = [each for each in providers.zoo() if each.name not in LEFT_OUT]
    roles = {provider.name: provider.role for provider in present}
    results = grouped.measure(
        zoo.compact(),
        present,
        passes=zoo.PASSES,
        repeats=REPEATS,
        tell=lambda measured: print(report.table(measured, roles), flush=True),
        keep=keep,
    )
    print(report.closing(results), flush=True)
    models = {model.name: model.source for model in zoo.MODELS}
    return report.require_correct(results).as_json() | {"models": models}
