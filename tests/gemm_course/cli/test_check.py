"""`course check`: one exercise, all of them, and a notebook watched as it is saved."""

from __future__ import annotations

import json
import linecache
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from gemm_course.cli import app as command
from gemm_course.cli import lab, terminal
from gemm_course.cli.watch import watch
from gemm_course.exercises import manifest, progress
from gemm_course.judging.judge import Judge
from gemm_course.judging.results import Property, Result
from gemm_course.notebook_files import cells as submission
from gemm_course.notebook_files import locations as places
from places import ROOT

FIRST, SECOND = manifest.exercises()[:2]
(THIRD,) = manifest.find("05")


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A folder with exercises/ in it, and no checkout around."""
    root = tmp_path / "course"
    shutil.copytree(ROOT / "exercises", root / "exercises", ignore=shutil.ignore_patterns("*backup*", ".*"))
    monkeypatch.setattr(places, "checkout", lambda: None)
    monkeypatch.chdir(root)
    return root


def solve(root):
    shutil.copy(ROOT / "solutions" / f"{FIRST.name}.ipynb", root / "exercises")


def spoil(root):
    """A wrong answer to the first exercise."""
    path = root / "exercises" / f"{FIRST.name}.ipynb"
    text = (ROOT / "solutions" / path.name).read_text(encoding="utf-8")
    assert "right=True" in text
    path.write_text(text.replace("right=True", "right=False"), encoding="utf-8")


def test_a_stub_a_wrong_answer_and_a_solution(course, capsys):
    assert command.main(["check", "01"]) == 1
    printed = capsys.readouterr().out
    assert "TODO 01" in printed
    assert f"next: write {FIRST.function} in exercises/01_offsets.ipynb" in printed
    assert progress.load() == {}
    spoil(course)
    assert command.main(["check", "01"]) == 1
    printed = capsys.readouterr().out
    assert "✗" in printed
    assert f"next: repair {FIRST.function}" in printed
    seed = re.search(r"course check 01 --seed (\d+)", printed)[1]
    shown = printed.split("next:")[0]
    assert command.main(["check", "01", "--seed", seed]) == 1
    assert capsys.readouterr().out.split("next:")[0] == shown
    solve(course)
    assert command.main(["check", "01"]) == 0
    printed = capsys.readouterr().out
    assert "pass: 10 of 10" in printed
    assert f"next: {SECOND.id} · {SECOND.title}: exercises/{SECOND.name}.ipynb" in printed
    assert progress.load()["01"]["passed"]


def test_the_last_cell_that_defines_the_function_is_checked_as_in_the_notebook(course, capsys, monkeypatch):
    path, solution = course / "exercises" / f"{FIRST.name}.ipynb", ROOT / "solutions" / f"{FIRST.name}.ipynb"
    source = f"{submission.of_notebook(solution, FIRST.function)}\nresult = check({FIRST.function})\n"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"].append({"cell_type": "code", "metadata": {}, "source": source, "outputs": []})
    path.write_text(json.dumps(notebook), encoding="utf-8")
    assert command.main(["check", "01"]) == 0
    assert "pass: 10 of 10" in capsys.readouterr().out

    names = {"torch": torch, "check": lambda function: submission.of_function(function, FIRST.function)}
    monkeypatch.setitem(linecache.cache, "<cell>", (len(source), None, source.splitlines(True), "<cell>"))
    exec(compile(source, "<cell>", "exec"), names)
    assert names["result"] == submission.of_notebook(path, FIRST.function)
    assert "check(" not in names["result"]


def test_json(course, capsys):
    solve(course)
    assert command.main(["check", "01", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["status"], row["points"], row["max_points"]) == ("passed", 10, 10)
    (course / "exercises" / f"{FIRST.name}.ipynb").write_text("{")
    assert command.main(["check", "01", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["status"], row["points"], row["max_points"], row["properties"]) == ("missing", 0, 10, [])
    assert "cannot be read as a notebook" in row["message"]


def test_json_has_the_reason_wherever_a_script_may_look(course, capsys):
    path = course / "exercises" / f"{FIRST.name}.ipynb"
    text = (ROOT / "solutions" / path.name).read_text(encoding="utf-8")
    path.write_text(text.replace("right=True", "right=True, ("), encoding="utf-8")
    assert command.main(["check", "01", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert re.match(r"line \d+: this is not Python yet: ", row["message"])
    assert [each["status"] for each in row["properties"]] == ["skip"] * len(FIRST.checks)
    assert {each["message"] for each in row["properties"]} == {f"not checked: {row['message'].splitlines()[0]}"}


def test_what_cannot_be_checked_here_is_told_with_3_and_is_not_kept(course, monkeypatch, capsys):
    def check(self, exercise, source, seed):
        skipped = [Property(each.name, each.title, each.points, "skip") for each in exercise.checks]
        reason = "this cannot be checked here: install another"
        return Result(exercise.id, exercise.title, "unchecked", skipped, reason, seed=7, max_points=exercise.points)

    monkeypatch.setattr(Judge, "check", check)
    monkeypatch.setattr(manifest, "exercises", lambda: (FIRST, SECOND))
    assert command.main(["check", "01"]) == 3
    printed = capsys.readouterr().out
    assert "not checked: 0 of 10 points so far" in printed
    assert "course doctor" in printed.split("next:")[1]
    assert "repair describe_groups" not in printed
    assert command.main(["check", "--all"]) == 3
    first, why, *_, advice = capsys.readouterr().out.splitlines()
    assert first == f"· 01    0 of 10  {FIRST.title}"
    assert why.strip() == "this cannot be checked here: install another"
    assert advice.startswith("course doctor ")
    assert command.main(["check", "01", "--json"]) == 3
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["status"], row["points"]) == ("unchecked", 0)
    assert progress.load() == {}


def test_a_missing_notebook_says_how_to_get_it(course, capsys):
    (course / "exercises" / f"{FIRST.name}.ipynb").unlink()
    assert command.main(["check", "01"]) == 1
    assert "course reset 01" in capsys.readouterr().out


def test_no_exercises_at_all(tmp_path, monkeypatch, capsys):
    (tmp_path / "solutions").mkdir()
    shutil.copy(ROOT / "solutions" / f"{FIRST.name}.ipynb", tmp_path / "solutions")
    monkeypatch.setattr(places, "checkout", lambda: None)
    monkeypatch.chdir(tmp_path / "solutions")  # what is here is nobody's answer
    assert command.main(["check", "01"]) == 3
    assert "course reset 01" in capsys.readouterr().err


def test_wrong_usage(capsys):
    for wrong in ([], ["03", "--all"], ["--watch", "--all"], ["03", "--watch", "--json"], ["offset"]):
        assert command.main(["check", *wrong]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("course")
    assert "did you mean 01_offsets?" in printed.err


def test_all_is_a_line_for_each_and_a_total(course, monkeypatch, capsys):
    """Which exercise is being checked is shown meanwhile, on a terminal."""
    shown = []
    monkeypatch.setattr(terminal.Status, "show", lambda self, text: shown.append(text))
    spoil(course)
    shutil.copy(ROOT / "solutions" / f"{SECOND.name}.ipynb", course / "exercises")
    monkeypatch.setattr(manifest, "exercises", lambda: (FIRST, SECOND, THIRD))
    assert command.main(["check", "--all"]) == 1
    first, why, second, third, _, total, advice = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"✗ 01    \d of 10  {FIRST.title}", first)
    assert why.startswith("       ")
    assert second == f"✓ 03   10 of 10  {SECOND.title}"
    assert re.fullmatch(r"· 05    0 of 10  .*: not begun", third)
    assert re.fullmatch(r"1 of 3 pass, 1\d of 30 points", total)
    assert advice.startswith("course check 01 ")
    assert [re.search(r"(\d) of 3: (\d\d)", text).groups() for text in shown] == [("1", "01"), ("2", "03"), ("3", "05")]


def test_where_a_notebook_is_looked_for(course, monkeypatch):
    here = course / "exercises" / f"{FIRST.name}.ipynb"
    for folder in (course, course / "exercises", course / "exercises" / "deeper"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        assert places.notebook(FIRST) == here
    loose = course.parent / "loose"
    loose.mkdir()
    shutil.copy(here, loose)
    monkeypatch.chdir(loose)
    assert places.notebook(FIRST) == loose / here.name
    assert places.notebook(FIRST, str(here)) == here
    monkeypatch.chdir(course.parent)
    assert places.folder() is None
    assert places.notebook(FIRST) == course.parent / "exercises" / here.name
    monkeypatch.setattr(places, "checkout", lambda: ROOT)
    assert places.notebook(FIRST) == ROOT / "exercises" / here.name


def test_the_nearest_folder_counts_even_where_another_has_more(course, monkeypatch):
    """Else a learner's reset would go to the notebooks of somebody else."""
    (course / "exercises" / f"{FIRST.name}.ipynb").unlink()
    monkeypatch.setattr(places, "checkout", lambda: ROOT)
    assert places.notebook(FIRST).parent == course / "exercises"
    shutil.rmtree(course / "exercises")
    (course / "exercises").mkdir()
    (course / "exercises" / "piano.ipynb").touch()
    assert places.notebook(FIRST).parent == ROOT / "exercises"


def test_this_checkout_is_found():
    assert places.checkout is lab.checkout
    assert places.solution(FIRST) == ROOT / "solutions" / f"{FIRST.name}.ipynb"


# --watch


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
        "from gemm_course.notebook_files import locations; locations.checkout = lambda: None;"
        "sys.exit(command.main(['check', '01', '--watch']))"
    )
    running = subprocess.Popen(
        [sys.executable, "-uc", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    killer = signal.alarm(60)  # should it never print what is waited for
    try:
        assert _until(running, "watching") == 1
        time.sleep(0.3)
        solve(course)
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
