"""`solution` in a notebook: when it is shown, as what, and what progress keeps."""

from __future__ import annotations

import gemm_course
from gemm_course import progress
from gemm_course.notebook import locations


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
