"""Measurements of the zoo: layers of published models: the product, both gradients, a step through autograd."""

from __future__ import annotations

from course_kernels.bench import grouped, providers, zoo
from gemm_course.cli import bench as command


def rows() -> dict:
    """The compact set by all providers that are installed; a wrong or failed result of ours is an error."""
    present = providers.zoo()
    roles = {provider.name: provider.role for provider in present}
    results = grouped.measure(
        zoo.compact(),
        present,
        passes=command.ZOO_PASSES,
        tell=lambda row, entry: print(command.table(row, entry, roles), flush=True),
    )
    print(command.closing(results), flush=True)
    if wrong := command.failures_of_ours(results):
        raise AssertionError("wrong or failed:\n" + "\n".join(wrong))
    results["models"] = {model.name: model.source for model in zoo.MODELS}
    return results
