"""Progress is kept, and a broken file costs nothing."""

from __future__ import annotations

import json

import pytest

import forked
from gemm_course import progress


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


WRITERS = """
import os
from gemm_course import progress
reading, writing = os.pipe()
writers = []
for name in "ab":
    writers.append(os.fork())
    if writers[-1] == 0:
        os.close(writing)
        os.read(reading, 1)  # until all have been started
        for number in range(40):
            progress.next_hint(name, 1000)
            progress.next_hint("shared", 1000)
        os._exit(0)
os.close(writing)
print([os.waitpid(pid, 0)[1] for pid in writers])
"""


def test_writers_at_once_lose_nothing():
    done = forked.run(WRITERS)
    assert done.stdout == "[0, 0]\n", done.stderr
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


def test_progress_starts_again_and_the_old_file_is_kept():
    assert progress.begin_anew() is None
    for points in (1, 2):
        progress.note_result("03", points, False)
        aside = progress.begin_anew()
        assert json.loads(aside.read_text())["exercises"]["03"]["points"] == points
        assert progress.load() == {}
    assert aside.name == "progress.before-2.json"
