"""`course list`: every exercise, which are solved, and what comes next."""

from __future__ import annotations

import json

from gemm_course import progress
from gemm_course.cli import app as command
from gemm_course.exercises import manifest


def test_list_shows_what_is_solved_and_what_is_next(capsys):
    progress.note_result("01", 10, True)
    assert command.main(["list"]) == 0
    printed = capsys.readouterr().out
    assert "✓ 01" in printed
    assert "· 02" in printed
    assert "next: 02" in printed
    assert "open exercises/02_first_kernel.ipynb" in printed
    assert "course check 02" in printed
    assert f"progress is kept in {progress.path()}, for all of this account" in " ".join(printed.split())
    assert "\n`course progress --anew` begins anew\n" in printed
    assert command.main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in rows] == [exercise.id for exercise in manifest.exercises()]
    assert all(row["exists"] for row in rows)
    assert [row["passed"] for row in rows] == [True] + [False] * (len(rows) - 1)


def test_the_table_fits_a_terminal_of_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert command.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for exercise in manifest.exercises():
        assert any(exercise.name in line and exercise.title in line for line in lines)


def test_a_notebook_that_is_missing_is_told(course, capsys):
    (course / "exercises" / "05_better_schedule.ipynb").unlink()
    assert command.main(["list"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("· 05"))
    assert "missing: course reset 05" in line
    assert "exercises/" not in line
