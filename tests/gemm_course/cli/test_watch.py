"""`course check --watch`: a notebook is checked again each time that it is saved."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

from gemm_course import progress
from gemm_course.cli.watch import watch
from gemm_course.exercises import manifest
from gemm_course.judging.results import Property, Result
from places import ROOT

(FIRST,), (SECOND,) = manifest.find("01"), manifest.find("03")


class Script:
    """Stands for time passing: runs a step each time that somebody waits, then presses Ctrl-C."""

    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, seconds):
        if not self.steps:
            raise KeyboardInterrupt
        if step := self.steps.pop(0):
            step()


def checker(*outcomes):
    """Checks with given results: points or with a status; each notebook's text is what was seen of it."""
    left, seen = list(outcomes), []

    def check(exercise, path):
        seen.append((exercise.id, path.read_text()))
        points = left.pop(0)
        if points is None:
            return None
        status = "passed" if points == 10 else "failed"
        if isinstance(points, str):
            points, status = 0, points
        return Result(exercise.id, "", status, [Property("", "", points, "pass")], max_points=10)

    return check, seen


def test_watch_checks_at_once_and_after_each_save(tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    path.write_text("one")

    def replace():  # as JupyterLab does: by another file
        (tmp_path / "new").write_text("three")
        os.replace(tmp_path / "new", path)

    check, seen = checker(4, None, 10)
    script = Script(
        None, lambda: path.write_text("two, longer"), None, None, None, None, path.unlink, None, replace, None, None
    )
    assert watch([(FIRST, path)], check, True, script) == 0
    assert seen == [("01", "one"), ("01", "two, longer"), ("01", "three")]
    assert "✓ 01 checked 2 times, at last 10 of 10 points" in capsys.readouterr().out


def test_watch_waits_until_a_save_is_complete(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text("one")
    check, seen = checker(10)
    script = Script(lambda: path.write_text("half"), lambda: path.write_text("half and half"), None, None)
    assert watch([(FIRST, path)], check, False, script) == 0
    assert seen == [("01", "half and half")]


def test_watch_tells_once_that_a_notebook_is_gone(tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    path.write_text("one")
    check, seen = checker(0, 10)
    script = Script(path.unlink, *[None] * 9, lambda: path.write_text("back"), None, None)
    assert watch([(FIRST, path), (SECOND, tmp_path / "never.ipynb")], check, False, script) == 1
    printed = capsys.readouterr().out
    assert printed.count("a.ipynb is gone: it is checked when it is there again") == 1
    assert "never.ipynb" not in printed
    assert seen == [("01", "back")]


def test_watch_of_all_checks_the_one_that_was_saved(tmp_path, capsys):
    paths = [tmp_path / "a.ipynb", tmp_path / "b.ipynb"]
    paths[0].write_text("a")
    check, seen = checker(3, 3)
    script = Script(lambda: paths[1].write_text("b"), None, lambda: paths[0].write_text("changed"), None)
    assert watch([(FIRST, paths[0]), (SECOND, paths[1])], check, False, script) == 1
    assert seen == [("03", "b"), ("01", "changed")]
    printed = capsys.readouterr().out
    assert "✗ 03 checked once, at last 3 of 10 points" in printed
    assert "✗ 01 checked once" in printed


def test_watch_ends_with_3_where_a_check_could_not_be_made(tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    path.write_text("one")
    check, _ = checker("unchecked")
    assert watch([(FIRST, path)], check, True, Script()) == 3
    assert "· 01 checked once, at last 0 of 10 points" in capsys.readouterr().out


def test_watch_that_saw_nothing_says_so(tmp_path, capsys):
    assert watch([(FIRST, tmp_path / "none.ipynb")], None, False, Script()) == 1
    assert "nothing was checked" in capsys.readouterr().out


def test_watch_for_real(course):
    """In another process: a stub, then a solution saved over it, then Ctrl-C."""
    script = (
        "import sys; from gemm_course.cli import app as command;"
        "from gemm_course.notebook import locations; locations.checkout = lambda: None;"
        "sys.exit(command.main(['check', '01', '--watch']))"
    )
    running = subprocess.Popen(
        [sys.executable, "-uc", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    killer = signal.alarm(60)  # should it never print what is waited for
    try:
        assert _until(running, "watching") == 1
        time.sleep(0.3)
        shutil.copy(ROOT / "solutions" / f"{FIRST.name}.ipynb", course / "exercises")
        assert _until(running, "watching") == 1
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=20)
    finally:
        signal.alarm(killer)
        running.kill()
    assert (running.returncode, err) == (0, "")
    assert "✓ 01 checked 2 times, at last 10 of 10 points" in out
    assert progress.load()["01"]["passed"]


def _until(process, text):
    """Read lines up to one with a text."""
    return next(1 for line in process.stdout if text in line)
