"""`hint` and `solution` in a notebook: which exercise they choose, their output, stored progress, and the next step."""

from __future__ import annotations

import types

import pytest

import gemm_course
from gemm_course import notebook_check, notebook_help
from gemm_course.cli import app as command
from gemm_course.exercises import manifest, progress
from gemm_course.judging.results import Property, Result
from gemm_course.notebook_files import locations

IPython = pytest.importorskip("IPython", reason="needs IPython: pip install '.[course]'")
(OFFSETS,), (MASKS,) = manifest.find("01"), manifest.find("03")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(notebook_help, "_latest", None)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)


@pytest.fixture
def notebook(monkeypatch):
    """A notebook's kernel; returns what it displays."""
    shown = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: types.SimpleNamespace(kernel=object(), user_ns={}))
    monkeypatch.setattr("IPython.display.display", lambda each: shown.append(each.data))
    return shown


def test_hints_continue_after_those_of_the_command(capsys):
    assert command.main(["hint", "03"]) == 0
    capsys.readouterr()
    gemm_course.hint("03")
    printed = capsys.readouterr().out
    assert f"Exercise 03 · {MASKS.title}, hint 2 of {len(MASKS.hints)}" in printed
    assert " ".join(MASKS.hints[1].split()) in " ".join(printed.split())
    assert progress.load()["03"]["hints"] == 2


def test_the_last_hint_says_where_the_answer_is(capsys):
    for _ in MASKS.hints:
        gemm_course.hint("03")
    assert capsys.readouterr().out.count('solution("03", give_up=True) shows the answer') == 1


@pytest.mark.parametrize("which", ["03", "3", "03_tail_masks", MASKS.function, type(MASKS.function, (), {})])
def test_an_exercise_has_many_names(which, capsys):
    gemm_course.hint(which)
    assert "Exercise 03" in capsys.readouterr().out


def test_without_a_name_it_is_the_notebooks_own_then_the_one_checked_last_then_the_first_unsolved(
    monkeypatch, notebook, capsys
):
    progress.note_result("01", 10, True)
    gemm_course.hint()
    notebook_help.note_checked(manifest.find("05")[0])
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
    assert 'as in solution("03")' in printed
    for exercise in manifest.exercises():
        progress.note_result(exercise.id, exercise.points, True)
    gemm_course.hint()
    assert "Every exercise is solved" in capsys.readouterr().out


def test_a_solution_comes_after_a_pass_and_is_shown_as_code(notebook, capsys):
    progress.note_result("01", 6, False)
    gemm_course.solution("01")
    printed = capsys.readouterr().out
    assert "so far 6 of 10 points" in printed
    assert 'solution("01", give_up=True)' in printed
    assert not notebook
    progress.note_result("01", 10, True)
    gemm_course.solution("01")
    (shown,) = notebook
    assert shown.startswith("```python\ndef describe_groups(")
    assert "SOLUTION" not in shown
    assert "gave_up" not in progress.load()["01"]


def test_giving_up_is_kept_and_a_prompt_gets_plain_text(capsys):
    gemm_course.solution("01", give_up=True)
    assert capsys.readouterr().out.startswith("def describe_groups(")
    assert progress.load()["01"]["gave_up"] is True


def test_without_the_repository_there_is_no_solution(monkeypatch, capsys):
    monkeypatch.setattr(locations, "solution", lambda exercise: None)
    gemm_course.solution("01", give_up=True)
    assert "which is not here" in capsys.readouterr().out
    assert "01" not in progress.load()


def check(monkeypatch, points):
    status = "passed" if points == 10 else "failed"
    result = Result("01", "ends", status, [Property("a", "b", points, "pass")], max_points=10)
    monkeypatch.setattr(notebook_check, "judge", lambda exercise, source: result)
    monkeypatch.setattr(notebook_check.cells, "of_function", lambda function, name: "")
    notebook_check.check(type(OFFSETS.function, (), {}))


def test_after_a_pass_a_reader_sees_the_next_step_and_a_grader_does_not(monkeypatch, notebook):
    check(monkeypatch, 10)
    assert notebook == [], "nobody has the notebook open"
    monkeypatch.setenv("JPY_SESSION_NAME", "exercises/any.ipynb")
    check(monkeypatch, 6)
    assert notebook == [], "not a pass"
    check(monkeypatch, 10)
    (shown,) = notebook
    assert shown.startswith(f'1 of {len(manifest.exercises())} exercises solved. `solution("01")` shows')
    link = shown.splitlines()[-1]
    assert link.startswith("Next: [02 ")
    assert (locations.checkout() / "exercises" / link.partition("](")[2].rstrip(")")).is_file()


def test_an_exercise_that_names_nothing_next_leads_to_the_next_unsolved_one(monkeypatch, notebook):
    monkeypatch.setenv("JPY_SESSION_NAME", "exercises/any.ipynb")
    monkeypatch.setattr(locations, "stub", lambda exercise: None)
    progress.note_result("02", 10, True)
    check(monkeypatch, 10)
    assert notebook[0].splitlines()[-1] == f"Next: [Exercise 03, {manifest.find('03')[0].title}](03_tail_masks.ipynb)"


def test_importing_help_starts_no_process():
    notebook_check.stop()
    assert gemm_course.hint is notebook_help.hint
    assert notebook_check._process is None
    with pytest.raises(AttributeError, match="no attribute 'answers'"):
        gemm_course.answers  # noqa: B018
