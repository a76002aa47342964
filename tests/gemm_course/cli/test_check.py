"""`course check`: one exercise, and all of them."""

from __future__ import annotations

import json
import linecache
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gemm_course import progress
from gemm_course.cli import app as command
from gemm_course.cli import lab, terminal
from gemm_course.cli.exercise_argument import find
from gemm_course.exercises import manifest
from gemm_course.judging.judge import Judge
from gemm_course.judging.results import Property, Result
from gemm_course.notebook import cells, locations
from places import ROOT

FIRST, SECOND = manifest.exercises()[:2]
(THIRD,) = manifest.find("05")


def solve(root, exercise=FIRST):
    shutil.copy(ROOT / "solutions" / f"{exercise.name}.ipynb", root / "exercises")


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


def test_next_comes_what_follows_and_not_what_was_passed_over(course, capsys):
    third, fourth = manifest.exercises()[2:4]
    solve(course, third)
    assert command.main(["check", third.id]) == 0
    assert f"next: {fourth.id} · {fourth.title}" in capsys.readouterr().out


def test_the_last_cell_that_defines_the_function_is_checked_as_in_the_notebook(course, capsys, monkeypatch):
    path, solution = course / "exercises" / f"{FIRST.name}.ipynb", ROOT / "solutions" / f"{FIRST.name}.ipynb"
    source = f"{cells.of_notebook(solution, FIRST.function)}\nresult = check({FIRST.function})\n"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"].append({"cell_type": "code", "metadata": {}, "source": source, "outputs": []})
    path.write_text(json.dumps(notebook), encoding="utf-8")
    assert command.main(["check", "01"]) == 0
    assert "pass: 10 of 10" in capsys.readouterr().out

    names = {"torch": torch, "check": lambda function: cells.of_function(function, FIRST.function)}
    monkeypatch.setitem(linecache.cache, "<cell>", (len(source), None, source.splitlines(True), "<cell>"))
    exec(compile(source, "<cell>", "exec"), names)
    assert names["result"] == cells.of_notebook(path, FIRST.function)
    assert "check(" not in names["result"]


def test_without_a_name_it_takes_the_first_that_is_not_solved(course, capsys):
    progress.note_result(FIRST.id, 10, True)
    assert command.main(["check"]) == 1
    assert capsys.readouterr().out.startswith(f"Exercise {SECOND.id} · {SECOND.title}")
    for exercise in manifest.exercises():
        progress.note_result(exercise.id, exercise.points, True)
    assert command.main(["check"]) == 0
    assert capsys.readouterr().out.startswith("every exercise is solved; `course check --all`")


def test_the_result_fits_a_terminal_of_80_columns_and_breaks_no_word(course, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    path = course / "exercises" / f"{FIRST.name}.ipynb"
    text = (ROOT / "solutions" / path.name).read_text(encoding="utf-8")
    path.write_text(text.replace("right=True", "right=False"), encoding="utf-8")
    assert command.main(["check", "01"]) == 1
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(terminal, "width", lambda: 1000)
    seed = printed.split("--seed ")[1].split()[0]
    assert command.main(["check", "01", "--seed", seed]) == 1
    assert capsys.readouterr().out.split() == printed.split()


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
    monkeypatch.setattr(locations, "checkout", lambda: None)
    monkeypatch.chdir(tmp_path / "solutions")  # what is here is nobody's answer
    assert command.main(["check", "01"]) == 3
    assert "course reset 01" in capsys.readouterr().err


def test_wrong_usage(capsys):
    for wrong in (["03", "--all"], ["--watch", "--all"], ["03", "--watch", "--json"], ["offset"]):
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
    assert second == f"✓ 02   10 of 10  {SECOND.title}"
    assert re.fullmatch(r"· 05    0 of 10  .*: not started", third)
    assert re.fullmatch(r"1 of 3 pass, 1\d of 30 points", total)
    assert advice.startswith("course check 01 ")
    assert [re.search(r"(\d) of 3: (\d\d)", text).groups() for text in shown] == [("1", "01"), ("2", "02"), ("3", "05")]


def test_where_a_notebook_is_looked_for(course, monkeypatch):
    here = course / "exercises" / f"{FIRST.name}.ipynb"
    for folder in (course, course / "exercises", course / "exercises" / "deeper"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        assert locations.notebook(FIRST) == here
    loose = course.parent / "loose"
    loose.mkdir()
    shutil.copy(here, loose)
    monkeypatch.chdir(loose)
    assert locations.notebook(FIRST) == loose / here.name
    assert locations.notebook(FIRST, str(here)) == here
    monkeypatch.chdir(course.parent)
    assert locations.folder() is None
    assert locations.notebook(FIRST) == course.parent / "exercises" / here.name
    monkeypatch.setattr(locations, "checkout", lambda: ROOT)
    assert locations.notebook(FIRST) == ROOT / "exercises" / here.name


def test_the_nearest_folder_counts_even_where_another_has_more(course, monkeypatch):
    """Else a learner's reset would go to the notebooks of somebody else."""
    (course / "exercises" / f"{FIRST.name}.ipynb").unlink()
    monkeypatch.setattr(locations, "checkout", lambda: ROOT)
    assert locations.notebook(FIRST).parent == course / "exercises"
    shutil.rmtree(course / "exercises")
    (course / "exercises").mkdir()
    (course / "exercises" / "piano.ipynb").touch()
    assert locations.notebook(FIRST).parent == ROOT / "exercises"


def test_this_checkout_is_found():
    assert locations.checkout is lab.checkout
    assert locations.solution(FIRST) == ROOT / "solutions" / f"{FIRST.name}.ipynb"


def test_a_seed_below_0_is_wrong_usage(capsys):
    assert command.main(["check", "01", "--seed", "-1"]) == 2
    assert "must be a number from 0 to 4294967295, got '-1'" in capsys.readouterr().err


def test_a_notebook_of_any_name_is_found_by_what_it_defines(course, capsys):
    shutil.copy("exercises/01_offsets.ipynb", "my_answer.ipynb")
    assert [each.id for each in find("my_answer.ipynb")] == ["01"]
    Path("other.ipynb").write_text('{"cells": []}')
    Path("broken.ipynb").write_text("{")
    for name, says in (
        ("other", "holds no answer"),
        ("broken", "cannot be read"),
        ("none", "no file none"),
    ):
        assert command.main(["check", f"{name}.ipynb"]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [0.3, 0.8])
def test_ctrl_c_while_it_starts_leaves_one_line(course, seconds):
    code = (
        "import sys; sys.argv[0] = 'course'; print(flush=True); from gemm_course.cli import app; sys.exit(app.main())"
    )
    running = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    running.stdout.readline()
    time.sleep(seconds)  # in which torch is being imported
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=20)
    assert (running.returncode, stderr.decode().strip()) == (130, "course: interrupted")
