"""Fork servers whose templates differ: judges that read no answer and take no builtins away, or with a GPU."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from gemm_course.exercises import manifest
from gemm_course.judging.judge import Judge
from gemm_course.runner import fork_server

SERVED = "    worker.preload(mode, libraries)\n"
UNREAD = (
    SERVED,
    (
        f"{SERVED}    worker.static_check.find_violation = lambda *_: None\n"
        "    worker.own_builtins.of_an_answer = lambda: vars(__import__('builtins'))\n"
    ),
)


def altered(folder, *changes):
    """Path of a copy of the module that templates run, with (before, after) replaced."""
    text = Path(fork_server.__file__).read_text(encoding="utf-8")
    place = "Path(__file__).resolve().parents[2]"
    for before, after in (*changes, (place, repr(str(Path(fork_server.__file__).parents[2])))):
        assert before in text
        text = text.replace(before, after)
    copy = folder / "fork_server.py"
    copy.write_text(text, encoding="utf-8")
    return str(copy)


@contextlib.contextmanager
def judge_of(folder, *changes):
    """A judge whose fork server is altered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "__file__", altered(folder, *changes))
        found = Judge(manifest.examiner)
    with found:
        yield found
