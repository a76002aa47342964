"""Whatever was tried on the checks before has a test today, or a reason why it needs none."""

from __future__ import annotations

import functools

import pytest

import mutants
from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import tomllib
from places import ALTERNATIVES, ROOT

HERE = ROOT / "tests" / "gemm_course"
TRIED = tomllib.loads((HERE / "tried_before.toml").read_text(encoding="utf-8"))


def rows(table):
    """(what was tried, the tests that it names); without those that have a reason instead."""
    for what, tests in table.items():
        if isinstance(tests, dict):
            assert tests.keys() == {"why"}, what
            assert tests["why"], what
        else:
            yield what, [tests] if isinstance(tests, str) else tests


def alternatives(exercise):
    return {path.stem for path in (ALTERNATIVES / exercise).glob("*.py")}


@pytest.mark.parametrize(("kind", "answers"), [("mistakes", mutants.of), ("right", alternatives)])
def test_every_answer_that_was_tried_is_still_tried(kind, answers, is_a_test):
    assert TRIED[kind].keys() <= {exercise.name for exercise in manifest.exercises()}
    for exercise, table in TRIED[kind].items():
        for what, tests in rows(table):
            for test in tests:
                there = is_a_test(test) if "::" in test else test in answers(exercise)
                assert there, f"{exercise}, {what}: there is no {test}"


def test_every_attack_that_was_tried_is_still_tried(is_a_test):
    for what, tests in rows(TRIED["attacks"]):
        for test in tests:
            assert is_a_test(test), f"{what}: there is no {test}"


@pytest.fixture(scope="module")
def is_a_test(request):
    """Whether pytest collects a test of this name; without parameters, with any."""

    @functools.cache
    def collected(module):
        path = HERE / f"{module}.py"
        if not path.is_file():
            return frozenset()
        found = pytest.Module.from_parent(request.node.parent, path=path).collect()
        return frozenset(name for each in found for name in (each.name, each.name.partition("[")[0]))

    def there(name):
        module, _, test = name.partition("::")
        return test in collected(module)

    return there
