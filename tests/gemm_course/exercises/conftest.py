"""What the exercises' tests share: one judge, and the exercise that a test module is named after."""

from __future__ import annotations

import pytest

import mutants
from gemm_course.exercises import manifest
from gemm_course.judging.judge import Judge

pytest.register_assert_rewrite("exercise_checks")


@pytest.fixture(scope="session")
def judge():
    with Judge(manifest.examiner) as found:
        yield found


@pytest.fixture(scope="module")
def exercise(request):
    """That of the test module's name: test_e03_tail_masks.py is about 03_tail_masks."""
    name = request.path.stem.removeprefix("test_e")
    return next(each for each in manifest.exercises() if each.name == name)


def pytest_generate_tests(metafunc):
    """Run a test with ``mutant`` on every mutant of the module's exercise."""
    if "mutant" in metafunc.fixturenames:
        found = mutants.of(metafunc.definition.path.stem.removeprefix("test_e"))
        metafunc.parametrize("mutant", found.values(), ids=found)
