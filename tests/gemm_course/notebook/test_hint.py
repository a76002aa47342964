"""`hint` in a notebook: it counts on where the command stopped, and says where the answer is."""

from __future__ import annotations

import gemm_course
from gemm_course import progress
from gemm_course.cli import app as command
from gemm_course.exercises import manifest

(MASKS,) = manifest.find("03")


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
