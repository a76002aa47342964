"""Which exercise `course hint`, `solution` and `reset` take where a name means several, or none is given."""

from __future__ import annotations

import io
import shutil

import pytest

from gemm_course import progress
from gemm_course.cli import app as command
from gemm_course.cli.exercise_argument import find_one
from gemm_course.exercises import manifest
from gemm_course.notebook import locations
from places import ROOT

WALK, TABLES = manifest.find("04")


@pytest.fixture(autouse=True)
def course(tmp_path, monkeypatch):
    """A checkout in which both exercises of lesson 04 are as they were handed out, and nothing is done."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    root = tmp_path / "course"
    for folder in ("exercises", "solutions"):
        (root / folder).mkdir(parents=True)
        for each in (WALK, TABLES):
            shutil.copy(ROOT / folder / f"{each.name}.ipynb", root / folder)
    monkeypatch.setattr(locations, "checkout", lambda: root)
    monkeypatch.chdir(root)
    return root


def passed(exercise):
    progress.note_result(exercise.id, exercise.points, True)


def solve(root, exercise):
    shutil.copy(root / "solutions" / f"{exercise.name}.ipynb", root / "exercises")


@pytest.mark.parametrize("name", ["04a", "walk_tiles", "04a_tile_walk", "exercises/04a_tile_walk.ipynb"])
def test_a_name_that_means_one_needs_no_reason(name):
    passed(WALK)
    assert find_one(name, "hint") == (WALK, "")


@pytest.mark.parametrize(("done", "left"), [(WALK, TABLES), (TABLES, WALK)])
def test_the_only_one_that_is_not_passed(done, left):
    passed(done)
    assert find_one("4", "hint") == (left, f"{left.name} (04 has 04a and 04b; {left.id} is not passed yet)")


@pytest.mark.parametrize("begun", [WALK, TABLES])
@pytest.mark.parametrize("how", ["hint", "points", "notebook"])
def test_of_several_the_only_one_that_is_begun(course, begun, how):
    if how == "hint":
        progress.next_hint(begun.id, 3)
    elif how == "points":
        progress.note_result(begun.id, 2, False)
    else:
        solve(course, begun)
    why = f"{begun.name} (04 has 04a and 04b; only {begun.id} is begun and not passed yet)"
    assert find_one("04", "hint") == (begun, why)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("nothing begun", "04 has 04a and 04b, and 04a and 04b are not passed yet: name one"),
        ("both begun", "04 has 04a and 04b, and 04a and 04b are not passed yet: name one"),
        ("both passed", "04 has 04a and 04b, and all are passed: name one"),
        ("no notebooks", "04 has 04a and 04b, and 04a and 04b are not passed yet: name one"),
    ],
)
@pytest.mark.parametrize("name", ["hint", "solution", "reset"])
def test_where_it_is_not_clear_it_is_asked_for(course, capsys, name, state, says):
    for each in (WALK, TABLES):
        if state == "both begun":
            progress.next_hint(each.id, 3)
        elif state == "both passed":
            passed(each)
        elif state == "no notebooks":
            (course / "exercises" / f"{each.name}.ipynb").unlink()
    before = progress.load()
    assert command.main([name, "04"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        f"course {name}: {says}, as in `course {name} 04a`", f"  04a  {WALK.title}", f"  04b  {TABLES.title}",
    ]  # fmt: skip
    assert progress.load() == before


def test_each_command_says_first_which_and_why(course, capsys):
    why = "04b_tables (04 has 04a and 04b; 04b is not passed yet)"
    passed(WALK)
    assert command.main(["hint", "04"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert (first, second.split(",")[0]) == (why, f"Exercise 04b · {TABLES.title}")
    assert command.main(["solution", "04"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[0]) == ("", why)
    assert command.main(["solution", "04", "--give-up"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == f"# {why}"
    compile(printed, "the cell", "exec")
    assert "def problem_tables" in printed
    assert "def walk_tiles" not in printed
    for each in (WALK, TABLES):
        solve(course, each)
    assert command.main(["reset", "04", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == why
    assert [path.name for path in (course / "exercises").glob("*backup*")] == ["04b_tables.backup-1.ipynb"]


@pytest.mark.parametrize("name", ["solution", "reset"])
def test_without_a_name_the_exercises_are_listed(capsys, name):
    assert command.main([name]) == 2
    printed = capsys.readouterr()
    first, *rest = printed.err.splitlines()
    assert (printed.out, first) == ("", f"course {name}: name an exercise, as in `course {name} 03`; there are")
    assert rest == [f"  {each.id:<5}{each.title}" for each in manifest.exercises()]
