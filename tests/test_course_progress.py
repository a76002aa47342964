"""Progress is kept, and a broken file costs nothing; list, hint and check on top of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from course_kernels.course import check_command, command, manifest, notebook, progress
from course_kernels.course.results import Property, Result

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_the_best_result_is_kept():
    progress.note_result("02", 6, False)
    progress.note_result("02", 10, True)
    progress.note_result("02", 2, False)
    assert progress.load()["02"] == {"points": 10, "passed": True, "hints": 0}


def test_hints_come_one_after_the_other_and_the_last_again():
    assert [progress.next_hint("02", 3) for _ in range(5)] == [0, 1, 2, 2, 2]
    assert progress.next_hint("01", 3) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"exercises": 3}',
        '{"exercises": {"02": {"points": "many"}}}',
        '{"exercises": {"02": {"points": Infinity}}}',
    ],
)
def test_a_corrupt_file_is_reported_and_replaced(text):
    progress.path().parent.mkdir(parents=True)
    progress.path().write_text(text)
    told = []
    assert progress.load(told.append) == {}
    assert str(progress.path()) in told[0]
    assert progress.path().with_suffix(".broken.json").read_text() == text
    progress.note_result("01", 3, False, told.append)
    assert progress.load(told.append)["01"]["points"] == 3


def test_a_directory_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    told = []
    assert not progress.save({}, told.append)
    assert "not kept" in told[0]


def test_hint_command(capsys):
    for number in (1, 2):
        assert command.main(["hint", "02"]) == 0
        assert f"hint {number} of" in capsys.readouterr().out
    assert command.main(["hint", "02_tail_mask"]) == 2
    assert "02_tail_masks" in capsys.readouterr().err
    progress.note_result("01", 10, True)
    assert command.main(["hint"]) == 0
    assert "Exercise 02, hint 3 of" in capsys.readouterr().out


def test_hint_when_all_is_solved_says_so(capsys):
    for exercise in manifest.exercises():
        progress.note_result(exercise.id, exercise.points, True)
    assert command.main(["hint"]) == 0
    assert "every exercise is solved" in capsys.readouterr().out


def test_a_check_in_a_notebook_is_kept(monkeypatch):
    result = Result("01", "ends", "passed", [Property("a", "b", 10, "pass")], max_points=10)
    monkeypatch.setattr(notebook, "judge", lambda exercise, source: result)
    monkeypatch.setattr(notebook.submission, "of_function", lambda function, name: "")
    named = next(each for each in manifest.exercises() if each.id == "01").function
    notebook.check(type(named, (), {}))
    assert progress.load()["01"] == {"points": 10, "passed": True, "hints": 0}


def test_list_shows_what_is_solved_and_what_is_next(capsys):
    progress.note_result("01", 10, True)
    assert command.main(["list"]) == 0
    printed = capsys.readouterr().out
    assert "✓ 01" in printed
    assert "· 02" in printed
    assert "next: open exercises/02_tail_masks.ipynb" in printed
    assert command.main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in rows] == [exercise.id for exercise in manifest.exercises()]


def test_check_command_on_stubs_and_on_a_solution(tmp_path, monkeypatch, capsys):
    root = tmp_path / "course"
    shutil.copytree(ROOT / "exercises", root / "exercises")
    monkeypatch.setattr(check_command, "checkout", lambda: root)
    assert command.main(["check", "01"]) == 1
    assert "TODO 01" in capsys.readouterr().out
    shutil.copy(ROOT / "solutions" / "01_offsets.ipynb", root / "exercises")
    assert command.main(["check", "01", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["status"] == "passed"
    assert progress.load()["01"]["passed"]
    (root / "exercises" / "01_offsets.ipynb").unlink()
    assert command.main(["check", "01"]) == 1
    assert "cannot be read" in capsys.readouterr().out


def test_check_wants_one_exercise_or_all(capsys):
    assert command.main(["check"]) == 2
    assert command.main(["check", "02", "--all"]) == 2
