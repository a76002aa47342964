"""`course progress`: points, hints, and what comes next."""

from __future__ import annotations

import json
import re

from gemm_course import progress
from gemm_course.cli import app as command
from gemm_course.exercises import manifest


def test_progress_shows_points_hints_and_what_is_next(capsys):
    total, count = sum(each.points for each in manifest.exercises()), len(manifest.exercises())
    progress.note_result("01", 10, True)
    progress.note_result("03", 6, False)
    progress.next_hint("03", 3)
    progress.note_given_up("05")
    assert command.main(["progress"]) == 0
    printed = capsys.readouterr().out
    assert f"16 of {total} points, 1 of {count} solved" in printed
    assert "✓ 01   ██████████ 10 of 10" in printed
    assert re.search(r"^✗ 03   ██████░░░░  6 of 10 .*\(1 of \d hints used\)$", printed, re.MULTILINE)
    assert re.search(r"^· 05 .*\(solution shown before a pass\)$", printed, re.MULTILINE)
    assert "next: 02" in printed
    assert command.main(["progress", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["points"], data["of"], data["solved"], data["next"]) == (16, total, 1, "02")
    assert data["exercises"][2] == {
        "id": "03", "points": 6, "of": 10, "passed": False, "hints": 1, "gave_up": False,
    }  # fmt: skip


def test_when_all_is_solved_progress_says_so(capsys):
    for exercise in manifest.exercises():
        progress.note_result(exercise.id, exercise.points + 5, True)  # an older version gave more
    assert command.main(["progress"]) == 0
    printed = capsys.readouterr().out
    total = sum(each.points for each in manifest.exercises())
    assert f"{'█' * 40}  {total} of {total} points" in printed
    assert "all solved\n" in printed


def test_progress_says_where_it_is_kept_and_how_to_begin_anew(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert command.main(["progress", "--anew"]) == 0
    assert "there is no progress yet" in capsys.readouterr().out
    progress.note_result("01", 10, True)
    assert command.main(["progress"]) == 0
    printed = capsys.readouterr().out
    kept = "kept in ~/.local/state/grouped-gemm-course/progress.json, for all of this account"
    assert kept in " ".join(printed.split())
    assert "course progress --anew" in printed
    assert command.main(["progress", "--anew"]) == 0
    assert "~/.local/state/grouped-gemm-course/progress.before-1.json" in capsys.readouterr().out
    assert progress.load() == {}


def test_the_page_fits_a_terminal_of_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    for exercise in manifest.exercises():
        progress.note_result(exercise.id, 6, False)
        progress.next_hint(exercise.id, 3)
        progress.note_given_up(exercise.id)
    assert command.main(["progress"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert printed.count("hints used, solution shown before a pass)") == len(manifest.exercises())


def test_a_file_that_cannot_be_set_aside_stays(monkeypatch, capsys):
    def refuse(*_):
        raise PermissionError("no")

    monkeypatch.setattr(progress.os, "rename", refuse)
    assert command.main(["progress", "--anew"]) == command.CANNOT
    assert "cannot be renamed" in capsys.readouterr().err
