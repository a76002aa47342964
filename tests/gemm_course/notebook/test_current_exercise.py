"""Which exercise `hint` and `solution` are about."""

from __future__ import annotations

import pytest

import gemm_course
from gemm_course import progress
from gemm_course.exercises import manifest
from gemm_course.notebook import current_exercise

(MASKS,) = manifest.find("03")


@pytest.mark.parametrize("which", ["03", "3", 3, "03_tail_masks", MASKS.function, type(MASKS.function, (), {})])
def test_an_exercise_has_many_names(which, capsys):
    gemm_course.hint(which)
    assert "Exercise 03" in capsys.readouterr().out


def test_without_a_name_it_is_the_notebooks_own_then_the_one_checked_last_then_the_first_unsolved(
    monkeypatch, notebook, capsys
):
    progress.note_result("01", 10, True)
    gemm_course.hint()
    current_exercise.note_checked(manifest.find("05")[0])
    gemm_course.hint()
    monkeypatch.setenv("JPY_SESSION_NAME", "exercises/06_descriptor_kernel.yours.ipynb")
    gemm_course.hint()
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/01_the_grouped_problem.ipynb")
    gemm_course.hint()
    printed = capsys.readouterr().out
    assert [line.split()[1] for line in printed.splitlines() if "Exercise" in line] == ["02", "05", "06", "05"]


def test_of_several_it_is_the_first_unsolved(capsys):
    progress.note_result("04a", 10, True)
    gemm_course.hint("04")
    assert "Exercise 04b" in capsys.readouterr().out


def test_a_wrong_name_is_answered_with_the_near_ones(capsys):
    gemm_course.hint("03_tail_mask")
    gemm_course.solution(print)
    printed = capsys.readouterr().out
    assert "did you mean 03_tail_masks or" in printed
    gemm_course.hint([3])
    assert capsys.readouterr().out.startswith('hint wants the number of an exercise, as in hint("03"), or its function')
    assert 'as in solution("03")' in printed
    for exercise in manifest.exercises():
        progress.note_result(exercise.id, exercise.points, True)
    gemm_course.hint()
    assert "Every exercise is solved" in capsys.readouterr().out
