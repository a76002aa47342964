"""`course hint`: the hints of an exercise one after the other, and where the answer is after the last."""

from __future__ import annotations

import re

from gemm_course import progress
from gemm_course.cli import app as command
from gemm_course.exercises import manifest


def test_hint_command(capsys):
    for number in (1, 2):
        assert command.main(["hint", "03"]) == 0
        assert f"hint {number} of" in capsys.readouterr().out
    assert command.main(["hint", "02_tail_mask"]) == 2
    assert "03_tail_masks" in capsys.readouterr().err
    for done in ("01", "02"):
        progress.note_result(done, 10, True)
    assert command.main(["hint"]) == 0
    assert re.search(r"Exercise 03 · .*, hint 3 of", capsys.readouterr().out)


def test_the_last_hint_says_where_the_answer_is(capsys):
    (exercise,) = manifest.find("01")
    for _ in exercise.hints:
        command.main(["hint", "01"])
    printed = capsys.readouterr().out
    assert printed.count("course solution 01 --give-up") == 1
    assert printed.endswith("shows the answer.\n")


def test_hint_when_all_is_solved_says_so(capsys):
    for exercise in manifest.exercises():
        progress.note_result(exercise.id, exercise.points, True)
    assert command.main(["hint"]) == 0
    assert "every exercise is solved" in capsys.readouterr().out
