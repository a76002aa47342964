"""One more test of an exercise's mutants, for those whose points once depended on what was drawn."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

import mutants
from exercise_checks import drawn_for, judged
from gemm_course.exercises import manifest


def earned(judge, exercise, name, seeds, apart=False):
    """The points of a mutant, with the names of the properties that hold, for each of the seeds that differ. `apart`:
    each seed in a process of its own, for a mutant that keeps something from call to call, or where other tests judge
    the same."""
    source = mutants.of(exercise.name)[name].source
    if apart:
        results = [judged(judge, exercise, source, seed) for seed in seeds]
    else:
        results = judged_together(judge, exercise, source, seeds)
    return {(each.points, *(p.name for p in each.properties if p.status == "pass")) for each in results}


def judged_together(judge, exercise, source, seeds):
    """The result of each seed, without compiling. The inputs of all seeds run in one process, and then each seed's
    replies are judged by themselves."""
    ask, whole = judge.ask, []

    def checked(exercise, cases, answers):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(manifest.examiner(exercise), "draw", lambda rng: cases)
            patch.setattr(judge, "ask", answers)
            return judge.check(exercise, source, 0, compiling=False)

    def noting(*request):
        whole.append(ask(*request))
        return whole[0]

    drawn = [drawn_for(exercise, seed) for seed in seeds]
    checked(msgspec.structs.replace(exercise, seconds=60.0), [case for cases in drawn for case in cases], noting)
    (outcome,) = whole
    found, first = [], 0
    for cases in drawn:
        own = part_of(outcome, first, first + len(cases))
        found.append(checked(exercise, cases, lambda *_, own=own: own))
        first += len(cases)
    return found


def part_of(outcome, first, end):
    """The outcome of a process with the inputs from `first` to `end` alone, cut out of the outcome of all."""
    others = [each for each in outcome.messages if each.case is None]
    own = [msgspec.structs.replace(each, case=each.case - first) for each in outcome.messages
           if each.case is not None and first <= each.case < end]  # fmt: skip
    return dataclasses.replace(outcome, messages=[*own, *others], layouts=outcome.layouts[first:end])
