"""The processes behind a check: one that dies is replaced, and one that cannot start is told in a message."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from course_kernels.course import manifest, notebook, submission, zygote
from course_kernels.course.judge import Judge

(OFFSETS,) = manifest.find("01")
(MASKS,) = manifest.find("02")
RIGHT = """
def describe_groups(sizes, total_m):
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends, torch.where(group < len(sizes), group, -1)
"""


@pytest.fixture(scope="module")
def judge():
    with Judge() as found:
        found.check(OFFSETS, RIGHT)
        yield found


def children_of(pid):
    """Process ids of a process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid):
    """Letter of a process's state, and its parent; of a process that is gone, like of a dead one, Z."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return ["Z", "0"]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    wait_until_dead(pid)


def wait_until_dead(pid):
    stop = time.monotonic() + 5
    while state(pid)[0] != "Z":
        assert time.monotonic() < stop, f"{pid} still runs"
        time.sleep(0.01)


def test_a_dead_zygote_is_replaced(judge):
    for pid in children_of(judge._nursery._process.pid):
        kill(pid)
    assert judge.check(OFFSETS, RIGHT).passed


def test_a_dead_nursery_is_replaced(judge):
    nursery = judge._nursery._process.pid
    for pid in (nursery, *children_of(nursery)):
        kill(pid)
    assert judge.check(OFFSETS, RIGHT).passed


def test_a_zygote_that_dies_during_a_check_is_replaced(judge, monkeypatch):
    forked = []

    def fork(self, fds, original=zygote.Zygote.fork):
        pid = original(self, fds)
        if not forked:
            kill(int(state(pid)[1]))
        forked.append(pid)
        return pid

    monkeypatch.setattr(zygote.Zygote, "fork", fork)
    assert judge.check(OFFSETS, RIGHT).passed
    assert len(forked) == 2


@pytest.mark.parametrize("mode", ["run", "compile"])
def test_what_always_dies_is_a_message(mode, monkeypatch, tmp_path, capfd):
    """Of either kind, with the last line of what it said; nothing of it reaches the learner's terminal."""
    text = Path(zygote.__file__).read_text(encoding="utf-8")
    imports = "    from course_kernels.course import sandbox, worker\n"
    place = "Path(__file__).resolve().parents[2]"
    assert imports in text
    assert place in text
    text = text.replace(imports, f"    if mode == {mode!r}: raise ImportError('no numpy here')\n{imports}")
    broken = tmp_path / "zygote.py"
    broken.write_text(text.replace(place, repr(str(Path(zygote.__file__).parents[2]))), encoding="utf-8")
    monkeypatch.setattr(zygote, "__file__", str(broken))
    path = Path(__file__).parents[1] / "solutions" / "02_tail_masks.ipynb"
    with Judge() as found:
        result = found.check(MASKS, submission.of_notebook(path, MASKS.function))
    assert result.status == "failed"
    message = result.message if mode == "run" else result.properties[-1].message
    assert "ImportError: no numpy here" in message, result.text()
    assert "course doctor" in message
    assert capfd.readouterr() == ("", "")
    assert (result.points == 0) == (mode == "run")


def test_what_cannot_be_started_is_a_message(monkeypatch):
    monkeypatch.setattr(zygote.sys, "executable", "/nowhere/python")
    with Judge() as found:
        result = found.check(OFFSETS, RIGHT)
    assert (result.status, result.points) == ("failed", 0)
    assert "No such file" in result.message


def test_a_judge_that_is_closed_leaves_no_process():
    found = Judge()
    found.check(OFFSETS, RIGHT)
    pid = found._nursery._process.pid
    children = children_of(pid)
    assert len(children) == 2
    found.close()
    for each in (pid, *children):
        wait_until_dead(each)


def test_a_notebook_whose_judge_dies_shows_a_message(monkeypatch, capsys):
    monkeypatch.setattr(notebook, "__file__", "/nowhere/notebook.py")
    notebook.stop()
    monkeypatch.setattr(notebook.submission, "of_function", lambda function, name: RIGHT)
    assert notebook.check(type(OFFSETS.function, (), {})) is None
    assert "`course doctor` says" in capsys.readouterr().out


def test_ctrl_c_during_a_check_leaves_nothing(monkeypatch, capfd):
    """Not the thread that waits for the compiler, not its process, no message of theirs."""
    asked, ended = [], []

    def ask(self, mode, *rest, original=Judge._ask):
        asked.append(mode)
        if mode == "run":
            while "compile" not in asked:
                time.sleep(0.01)
            raise KeyboardInterrupt
        outcome = original(self, mode, *rest)
        ended.append(outcome)
        return outcome

    monkeypatch.setattr(Judge, "_ask", ask)
    before = children_of(os.getpid())
    found = Judge()
    pid = found._nursery._process.pid
    path = Path(__file__).parents[1] / "solutions" / "02_tail_masks.ipynb"
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        found.check(MASKS, submission.of_notebook(path, MASKS.function))
    assert "closed" in ended[0].died
    assert time.monotonic() - started < 10
    wait_until_dead(pid)
    assert children_of(os.getpid()) == before
    assert capfd.readouterr() == ("", "")
