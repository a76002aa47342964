"""Judges that only pretend, for the tests of grading and of `course grade`."""

from __future__ import annotations

import pytest

from gemm_course.judging import pool
from hand_ins import outcome


@pytest.fixture
def pretend(monkeypatch):
    """Judges that answer by the answer's text; returns the list of what they were asked."""
    asked = type("Asked", (list,), {"answers": {}})()

    def check_all(tasks, jobs, waiting=None):
        for task in tasks:
            asked.append((task.source, jobs))
            found = asked.answers.get(task.source, outcome())
            if isinstance(found, list):
                found = found.pop(0)
            if isinstance(found, BaseException):
                raise found
            yield task, found

    monkeypatch.setattr(pool, "check_all", check_all)
    return asked
