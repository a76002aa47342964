"""The manifest against the tests: every exercise has its tests and its mutants, and nothing else has."""

from __future__ import annotations

from pathlib import Path

from gemm_course.exercises import manifest
from places import MUTANTS

NAMES = {exercise.name for exercise in manifest.exercises()}


def test_no_mutants_without_an_exercise():
    assert {path.name for path in MUTANTS.iterdir()} == NAMES


def test_every_exercise_has_its_tests():
    assert {path.stem.removeprefix("test_e") for path in Path(__file__).parent.glob("test_e[0-9]*.py")} == NAMES
