"""One more test of an exercise's mutants, for those whose points once depended on what was drawn."""

from __future__ import annotations

import mutants


def earned(judge, exercise, name, seeds):
    """The points of a mutant, with the names of the properties that hold, for each of the seeds that differ."""
    source = mutants.of(exercise.name)[name].source
    results = [judge.check(exercise, source, seed, compiling=False) for seed in seeds]
    return {(each.points, *(p.name for p in each.properties if p.status == "pass")) for each in results}
