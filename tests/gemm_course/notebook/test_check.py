"""`check` in a notebook: what it prints, keeps and says where nothing can be checked."""

from __future__ import annotations

import os

import pytest

import gemm_course
from answers import OFFSETS as RIGHT
from course_kernels import child_process
from gemm_course import progress
from gemm_course.exercises import manifest
from gemm_course.judging.results import Property, Result
from gemm_course.notebook import check as notebook_check
from gemm_course.notebook import kernel, locations

(OFFSETS,) = manifest.find("01")
FUNCTION = type(OFFSETS.function, (), {})


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(notebook_check.cells, "of_function", lambda function, name, ran: RIGHT)
    yield
    notebook_check.stop()


def test_a_check_in_a_notebook_is_kept(monkeypatch):
    result = Result("01", "ends", "passed", [Property("a", "b", 10, "pass")], max_points=10)
    monkeypatch.setattr(notebook_check, "judge", lambda exercise, source: result)
    notebook_check.check(FUNCTION)
    assert progress.load()["01"] == {"points": 10, "passed": True, "hints": 0}


def test_the_process_stays_for_the_next_check_and_is_replaced_when_it_dies(capsys):
    assert notebook_check.check(FUNCTION).passed
    pid = notebook_check.start().pid
    assert notebook_check.check(FUNCTION).passed
    assert notebook_check.start().pid == pid
    os.kill(pid, 9)
    assert notebook_check.check(FUNCTION).passed
    assert notebook_check.start().pid != pid
    assert capsys.readouterr().out.count("pass: ") == 3


def test_a_notebook_whose_judge_dies_shows_a_message(monkeypatch, capsys):
    notebook_check.stop()
    monkeypatch.setattr(child_process, "__file__", "/nowhere/child_process.py")
    assert notebook_check.check(FUNCTION) is None
    printed = capsys.readouterr().out
    assert "the process that checks answers died" in printed
    assert "/nowhere/child_process.py" in printed, "its last words"
    assert "`course doctor` says" in printed


def test_what_is_no_function_of_an_exercise_is_answered_with_those_that_are(capsys):
    assert notebook_check.check(print) is None
    assert f"check wants the function of an exercise: {OFFSETS.function}," in capsys.readouterr().out


def check_for(monkeypatch, points):
    status = "passed" if points == 10 else "failed"
    result = Result("01", "ends", status, [Property("a", "b", points, "pass")], max_points=10)
    monkeypatch.setattr(notebook_check, "judge", lambda exercise, source: result)
    notebook_check.check(FUNCTION)


def test_after_a_pass_a_reader_sees_the_next_step_and_a_grader_does_not(monkeypatch, notebook):
    check_for(monkeypatch, 10)
    assert notebook == [], "nobody has the notebook open"
    monkeypatch.setenv("JPY_SESSION_NAME", "exercises/any.ipynb")
    check_for(monkeypatch, 6)
    assert notebook == [], "not a pass"
    check_for(monkeypatch, 10)
    (shown,) = notebook
    assert shown.startswith(f'1 of {len(manifest.exercises())} exercises solved. `solution("01")` shows')
    link = shown.splitlines()[-1]
    assert link.startswith("Next: [02 ")
    assert (locations.checkout() / "exercises" / link.partition("](")[2].rstrip(")")).is_file()


def test_an_exercise_that_names_nothing_next_leads_to_the_next_unsolved_one(monkeypatch, notebook):
    monkeypatch.setenv("JPY_SESSION_NAME", "exercises/any.ipynb")
    monkeypatch.setattr(locations, "stub", lambda exercise: None)
    progress.note_result("02", 10, True)
    check_for(monkeypatch, 10)
    assert notebook[0].splitlines()[-1] == f"Next: [Exercise 03, {manifest.find('03')[0].title}](03_tail_masks.ipynb)"


def test_a_notebook_shows_mistakes_in_bold_and_a_prompt_does_not(monkeypatch, notebook, capsys):
    properties = [Property("a", "it holds", 5, "pass"), Property("b", "it ends", 5, "fail", "row 3")]
    result = Result("01", "ends", "failed", properties, message="it crashed", max_points=10)
    monkeypatch.setattr(notebook_check, "judge", lambda exercise, source: result)
    notebook_check.check(FUNCTION)
    printed = capsys.readouterr().out
    assert "\x1b[1mit crashed\x1b[0m" in printed
    assert "  \x1b[31m✗\x1b[0m \x1b[1mit ends\x1b[0m" in printed
    assert "  ✓ it holds\n" in printed
    monkeypatch.setattr(kernel, "shell", lambda: None)
    notebook_check.check(FUNCTION)
    assert capsys.readouterr().out == f"{result.text()}\n"


def test_importing_hint_and_solution_starts_no_process():
    notebook_check.stop()
    assert (gemm_course.hint.__name__, gemm_course.solution.__name__) == ("hint", "solution")
    assert notebook_check._process is None
    with pytest.raises(AttributeError, match="no attribute 'answers'"):
        gemm_course.answers  # noqa: B018
