"""Progress is kept, and a broken file costs nothing; list, progress and hint on top of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from gemm_course.cli import app as command
from gemm_course.exercises import manifest, progress


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_the_best_result_is_kept():
    progress.note_result("03", 6, False)
    progress.note_result("03", 10, True)
    progress.note_result("03", 2, False)
    assert progress.load()["03"] == {"points": 10, "passed": True, "hints": 0}


def test_hints_come_one_after_the_other_and_the_last_again():
    assert [progress.next_hint("03", 3) for _ in range(5)] == [0, 1, 2, 2, 2]
    assert progress.next_hint("01", 3) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"exercises": 3}',
        '{"exercises": {"03": {"points": "many"}}}',
        '{"exercises": {"03": {"points": Infinity}}}',
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


def test_a_file_of_the_old_numbers_is_carried_over_once():
    """Lessons were numbered anew: 02 became 03, and what was 03a before became 04a."""
    old = {"01": 10, "02": 1, "03a": 2, "03b": 3, "04": 4, "05": 5, "06": 6, "07": 7, "08": 8, "99z": 9}
    exercises = {name: {"points": points, "passed": points > 5, "hints": points % 4} for name, points in old.items()}
    exercises["08"]["gave_up"] = True
    progress.path().parent.mkdir(parents=True)
    progress.path().write_text(json.dumps({"exercises": exercises}))
    new = {"01": 10, "03": 1, "04a": 2, "04b": 3, "05": 4, "06": 5, "07": 6, "08": 7, "09": 8, "99z": 9}
    expected = {name: {"points": points, "passed": points > 5, "hints": points % 4} for name, points in new.items()}
    expected["09"]["gave_up"] = True
    assert progress.load() == expected
    progress.note_result("01", 3, False)  # writes the file
    assert json.loads(progress.path().read_text()) == {"version": progress.VERSION, "exercises": expected}
    assert progress.load() == expected


def test_a_directory_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    told = []
    progress.note_result("01", 3, False, told.append)
    assert "not kept" in told[-1]
    assert progress.next_hint("01", 3, told.append) == 0


def test_what_another_version_has_kept_stays():
    kept = {
        "version": 7,
        "exercises": {
            "03": {"points": 4, "passed": False, "hints": 1, "seconds": [3, 5]},
            "99z": {"points": 3, "medal": "gold"},
        },
    }
    progress.path().parent.mkdir(parents=True)
    progress.path().write_text(json.dumps(kept))
    progress.note_result("03", 10, True)
    progress.next_hint("01", 3)
    assert json.loads(progress.path().read_text()) == {
        "version": 7,
        "exercises": {
            "01": {"points": 0, "passed": False, "hints": 1},
            "03": {"points": 10, "passed": True, "hints": 1, "seconds": [3, 5]},
            "99z": {"points": 3, "medal": "gold", "passed": False, "hints": 0},
        },
    }


WRITER = """
import os, sys
from gemm_course.exercises import progress
os.write(1, b"r")
os.read(0, 1)
for number in range(40):
    progress.next_hint(sys.argv[1], 1000)
    progress.next_hint("shared", 1000)
"""


def test_writers_at_once_lose_nothing():
    call = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen([*call, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for name in "ab"]
    for each in writers:
        assert each.stdout.read(1) == b"r", "all have imported what they need"
    for each in writers:
        each.stdin.write(b"x")
        each.stdin.flush()
    for each in writers:
        each.communicate()
    assert [each.returncode for each in writers] == [0, 0]
    counts = {name: entry["hints"] for name, entry in progress.load().items()}
    assert counts == {"a": 40, "b": 40, "shared": 80}


@pytest.mark.parametrize("unavailable", ["no module", "no support"])
def test_where_files_cannot_be_locked_progress_is_kept_all_the_same(unavailable, monkeypatch):
    class Refusing:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(file, how):
            raise OSError(37, "No locks available")

    monkeypatch.setattr(progress, "fcntl", None if unavailable == "no module" else Refusing)
    progress.note_result("01", 10, True)
    assert progress.load()["01"]["passed"]


def test_a_lock_that_somebody_keeps_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(progress, "LOCK_S", 0.05)
    with progress._lock():
        progress.note_result("01", 10, True)
    assert progress.load()["01"]["passed"]


def test_hint_command(capsys):
    for number in (1, 2):
        assert command.main(["hint", "03"]) == 0
        assert f"hint {number} of" in capsys.readouterr().out
    assert command.main(["hint", "02_tail_mask"]) == 2
    assert "03_tail_masks" in capsys.readouterr().err
    progress.note_result("01", 10, True)
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


def test_list_shows_what_is_solved_and_what_is_next(capsys):
    progress.note_result("01", 10, True)
    assert command.main(["list"]) == 0
    printed = capsys.readouterr().out
    assert "✓ 01" in printed
    assert "· 03" in printed
    assert "next: 03" in printed
    assert "open exercises/03_tail_masks.ipynb" in printed
    assert "course check 03" in printed
    assert command.main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in rows] == [exercise.id for exercise in manifest.exercises()]
    assert [row["passed"] for row in rows] == [True] + [False] * (len(rows) - 1)


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
    assert "next: 03" in printed
    assert command.main(["progress", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["points"], data["of"], data["solved"], data["next"]) == (16, total, 1, "03")
    assert data["exercises"][1] == {
        "id": "03", "points": 6, "of": 10, "passed": False, "hints": 1, "gave_up": False,
    }  # fmt: skip


def test_when_all_is_solved_progress_says_so(capsys):
    for exercise in manifest.exercises():
        progress.note_result(exercise.id, exercise.points + 5, True)  # an older version gave more
    assert command.main(["progress"]) == 0
    printed = capsys.readouterr().out
    total = sum(each.points for each in manifest.exercises())
    assert f"{'█' * 40}  {total} of {total} points" in printed
    assert printed.endswith("all solved\n")
