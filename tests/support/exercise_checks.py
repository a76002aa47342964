"""Tests of any exercise: its stub says TODO, its solution passes, its mutants are rejected with their own message.

The test module of an exercise imports all of them; the fixtures ``exercise`` and ``mutant`` follow from its name.
"""

from __future__ import annotations

import functools
import random
import re

import msgspec
import pytest

import mutants
import run_tests
from gemm_course.exercises import manifest
from gemm_course.judging import judge as judging
from gemm_course.judging.causes import Malformed, MaskProblem
from gemm_course.judging.results import REASON_ABOVE, REASON_BELOW
from gemm_course.judging.untrusted import parse_watched
from gemm_course.judging.verdict import Verdict
from gemm_course.notebook import cells as submission
from gemm_course.notebook import stubs as generate
from gemm_course.runner import masks
from places import ROOT

SEEDS = range(12)  # few, because a judge is slow; test_draws tries more
HASTY_S = 1.0  # for answers that never end: whatever the limit is, the message is the same
EXAMINE = judging._examine
_judged = {}


def source_of(folder, exercise):
    return submission.of_notebook(ROOT / folder / f"{exercise.name}.ipynb", exercise.function)


def code_cells(folder, exercise):
    cells = generate.read(ROOT / folder / f"{exercise.name}.ipynb")["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def message_of(result, check):
    return result.message if check == "-" else next(p.message for p in result.properties if p.name == check)


def judged(judge, exercise, source, seed=0):
    """The result of one seed, without compiling: kept, because several tests use it."""
    return _judged_and_replies(judge, exercise, source, seed)[0]


def _judged_and_replies(judge, exercise, source, seed):
    """The result of one seed, and what the judge examined for it, input by input."""
    key = exercise.id, exercise.seconds, source, seed
    if key not in _judged:
        replies, cases = [], drawn_for(exercise, seed)  # as the judge draws

        def examine(*reply):
            done = EXAMINE(*reply)
            replies.append(reply)
            return done

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(judging, "_examine", examine)
            patch.setattr(manifest.examiner(exercise), "draw", lambda rng: cases)
            _judged[key] = judge.check(exercise, source, seed, compiling=False), replies
    return _judged[key]


def _examine_alone(examiner, case, message, layouts, verdict, probed, masks=()):
    """Whether there was anything to examine in what came back for an input, and a result of this input's own."""
    own = Verdict(verdict.exercise)
    done = EXAMINE(examiner, case, message, layouts, own, probed)
    assert not any(isinstance(each, Malformed) for each in own.stopped), f"the examiner failed: {own.stopped}"
    return done, own.result("", masks)


def telling_input(judge, exercise, source, check):
    """Number of the input of seed 0 that is enough to reject an answer; where several are, that with fewest stores."""

    def stores(reply):
        _, _, message, layouts, *_ = reply
        outputs, _ = parse_watched(message.watched, layouts[message.case])
        return sum(int(each.counts.sum()) for each in outputs.values())

    _, replies = _judged_and_replies(judge, exercise, source, 0)
    telling = (reply for reply in sorted(replies, key=stores) if message_of(_examine_alone(*reply)[1], check))
    return next((reply[2].case for reply in telling), None)


def test_the_stub_says_todo_and_nothing_else(judge, exercise):
    result = judge.check(exercise, source_of("exercises", exercise), compiling=False)
    assert (result.status, result.properties, result.points) == ("todo", [], 0)
    assert result.message == f"TODO {exercise.id}: {exercise.todo}"


def test_the_solution_passes(judge, exercise):
    result = judge.check(exercise, source_of("solutions", exercise))
    assert result.passed, result.text()
    assert result.points == exercise.points


def test_the_solution_passes_whatever_is_drawn(judge, exercise, monkeypatch):
    cases = [case for seed in SEEDS for case in drawn_for(exercise, seed)]
    monkeypatch.setattr(manifest.examiner(exercise), "draw", lambda rng: cases)  # one process for all of them
    slow = msgspec.structs.replace(exercise, seconds=60.0)
    result = judge.check(slow, source_of("solutions", exercise), compiling=False)
    assert result.passed, result.text()


def test_there_are_five_mutants(exercise):
    assert len(mutants.of(exercise.name)) >= 5


def test_a_mutant_is_told_what_is_wrong_and_where(judge, exercise, mutant):
    _, check, says, source, never, _ = mutant
    if (limit := f"after {exercise.seconds:g} s") in says:
        exercise = msgspec.structs.replace(exercise, seconds=HASTY_S)
        says = says.replace(limit, f"after {HASTY_S:g} s")
    # Compiling takes longer than all the rest, and only one check looks at it.
    result = judge.check(exercise, source, 0) if check == "compiles" else judged(judge, exercise, source)
    assert result.status == "failed", result.text()
    assert re.search(says, message_of(result, check)), result.text()
    assert not (never and re.search(never, result.text())), result.text()
    assert "makes no sense" not in result.text(), "the examiner failed"
    # A table has room for one message.
    assert not re.search(f"{REASON_ABOVE}|{REASON_BELOW}", result.message or result.first_failure.message)


def test_no_mutant_passes_by_luck(judge, exercise, mutant, monkeypatch):
    check, source = mutant.check, mutant.source
    if check in ("-", "compiles"):
        pytest.skip("does not depend on the inputs")
    number = telling_input(judge, exercise, source, check)
    assert number is not None, "not even seed 0 rejects it"
    left = set(SEEDS) - {0}
    # The same input is mostly enough with the other seeds, too; more inputs can only reject it again.
    for place in (slice(number, number + 1), slice(None)):
        cases = {seed: drawn_for(exercise, seed)[place] for seed in left}
        left -= judged_alone(judge, exercise, source, check, cases, monkeypatch).keys()
    assert left == set()


@functools.cache
def drawn_for(exercise, seed):
    """The inputs of a seed; some take long to find, and every mutant gets the same."""
    return manifest.examiner(exercise).draw(random.Random(seed))


def judged_alone(judge, exercise, source, check, drawn, monkeypatch):
    """Seed → the check's first message, for the seeds that have one. The inputs of all seeds run in one process."""
    problems = msgspec.convert(masks.problems(source), list[MaskProblem])
    said, seeds = {}, {id(case): seed for seed, cases in drawn.items() for case in cases}
    if not seeds:
        return said

    def examine(examiner, case, *reply):
        if (seed := seeds[id(case)]) in said:
            return True
        done, own = _examine_alone(examiner, case, *reply, problems)
        if text := message_of(own, check):
            said[seed] = text
        return done

    with monkeypatch.context() as patch:
        patch.setattr(judging, "_examine", examine)
        patch.setattr(
            manifest.examiner(exercise), "draw", lambda rng: [case for cases in drawn.values() for case in cases]
        )
        judge.check(msgspec.structs.replace(exercise, seconds=60.0), source, 0, compiling=False)
    return said


def test_an_answer_that_does_nothing_earns_nothing(judge, exercise):
    """Not even for the checks that it cannot break."""
    lines = source_of("exercises", exercise).splitlines()
    source = "\n".join(re.sub(r"raise NotImplementedError\(.*\)", "pass", line) for line in lines)
    result = judge.check(msgspec.structs.replace(exercise, seconds=HASTY_S), source, compiling=False)
    assert (result.status, result.points) == ("failed", 0), result.text()


def test_hints_lead_from_a_nudge_to_nearly_the_answer(exercise):
    assert len(exercise.hints) >= 3
    assert len(set(exercise.hints)) == len(exercise.hints)


def test_the_notebooks_are_in_step(exercise):
    pytest.importorskip("nbformat")
    pytest.importorskip("jupytext")
    import exercises

    assert exercises.differences(exercise) == []


def test_the_exercise_shows_nothing_of_its_solution(exercise):
    text = (ROOT / "exercises" / f"{exercise.name}.ipynb").read_text(encoding="utf-8")
    assert "SOLUTION" not in text
    assert "HIDDEN" not in text
    assert generate.hole(exercise).replace('"', '\\"') in text


def test_the_exercise_stores_what_its_solution_does_and_todo(exercise):
    """So it need not run in the tests, where its solution does."""
    stub, solved = (code_cells(folder, exercise) for folder in ("exercises", "solutions"))
    ids = [cell["metadata"].get("nbgrader", {}).get("grade_id") for cell in stub]
    hole = ids.index(submission.SOLUTION_ID)
    assert [(each["source"], each["outputs"]) for each in stub[:hole]] == [
        (each["source"], each["outputs"]) for each in solved[:hole]
    ]
    assert stub[hole]["outputs"] == []
    assert ids[hole + 1] == generate.CHECK_ID
    (told,) = stub[hole + 1]["outputs"]
    assert "".join(told["text"]) == f"Exercise {exercise.id} · {exercise.title}\nTODO {exercise.id}: {exercise.todo}\n"
    assert stub[hole + 2 :] == [] or exercise.name in run_tests.EXERCISES, "what follows the check has to run"


def test_every_cell_was_executed(exercise):
    for folder in ("exercises", "solutions"):
        counts = [cell["execution_count"] for cell in code_cells(folder, exercise)]
        assert counts == list(range(1, len(counts) + 1)), folder
