"""One more test of an exercise's mutants, for those whose points once depended on what was drawn."""

from __future__ import annotations

import mutants
from exercise_checks import judged


def earned(judge, exercise, name, seeds):
    """The points of a mutant, with the names of the properties that hold, for each of the seeds that differ."""
    source = mutants.of(exercise.name)[name].source
    results = [judged(judge, exercise, source, seed) for seed in seeds]
    return {(each.points, *(p.name for p in each.properties if p.status == "pass")) for each in results}
