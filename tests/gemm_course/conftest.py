"""Judges that only pretend, for the tests of grading and of `course grade`."""

from __future__ import annotations

import pytest

from gemm_course.grading import judge_pool, reader
from gemm_course.isolation import bubblewrap
from gemm_course.notebook import locations
from hand_ins import outcome, read_here


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}-state")  # not among what a test hands in
    monkeypatch.setattr(locations, "COPIES", "my_course_in_a_test")  # so tests do not use the copies of this checkout


@pytest.fixture(scope="module")
def no_second_wall():
    """Answers without Bubblewrap, for tests that look at their processes from outside, or share them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bubblewrap, "command", lambda *_: [])
        yield


@pytest.fixture
def pretend(monkeypatch):
    """Judges that answer by the answer's text; returns the list of what they were asked."""
    asked = type("Asked", (list,), {"answers": {}, "seconds": 0.0})()

    def check_all(tasks, jobs, waiting=None, reason_to_skip=lambda task: ""):
        for task in tasks:
            if reason := reason_to_skip(task):
                yield task, reason, 0.0
                continue
            asked.append((task.source, jobs))
            found = asked.answers.get(task.source, outcome())
            if isinstance(found, list):
                found = found.pop(0)
            if isinstance(found, BaseException):
                raise found
            yield task, found, asked.seconds

    monkeypatch.setattr(judge_pool, "check_all", check_all)
    monkeypatch.setattr(reader, "read_all", read_here)
    return asked
