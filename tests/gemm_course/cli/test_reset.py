"""`course reset` keeps what the learner wrote; `course solution` shows the answer to those who may see it."""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from gemm_course.cli import app as command
from gemm_course.exercises import manifest, progress
from gemm_course.notebook_files import cells as submission
from gemm_course.notebook_files import locations as places
from gemm_course.notebook_files import stubs as generate
from places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

(FIRST,) = manifest.find("01")
NAME = f"{FIRST.name}.ipynb"
ANSWER = "torch.searchsorted"  # in the solution only


class Typed(io.StringIO):
    """A person at a terminal."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("sys.stdin", io.StringIO())


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A checkout with one exercise, solved."""
    root = tmp_path / "course"
    (root / "exercises").mkdir(parents=True)
    shutil.copytree(ROOT / "solutions", root / "solutions")
    shutil.copy(ROOT / "solutions" / NAME, root / "exercises")
    monkeypatch.setattr(places, "checkout", lambda: root)
    monkeypatch.chdir(root)
    return root


def sources(path):
    return ["".join(cell["source"]) for cell in generate.read(path)["cells"]]


def test_reset_puts_the_stub_back_and_keeps_every_version(course, capsys):
    path = course / "exercises" / NAME
    solved = path.read_bytes()
    path.chmod(0o640)
    progress.note_result("01", 10, True)
    assert command.main(["reset", "01", "--yes"]) == 0
    assert "exercises/01_offsets.backup-1.ipynb" in capsys.readouterr().out
    assert sources(path) == sources(ROOT / "exercises" / NAME)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.write_text("no notebook any more")
    assert command.main(["reset", "01", "--yes"]) == 0
    assert sources(path) == sources(ROOT / "exercises" / NAME)
    assert (course / "exercises" / "01_offsets.backup-1.ipynb").read_bytes() == solved
    assert (course / "exercises" / "01_offsets.backup-2.ipynb").read_text() == "no notebook any more"
    assert len(os.listdir(course / "exercises")) == 3
    assert progress.load()["01"]["passed"]


def test_reset_of_a_stub_does_nothing(course, capsys):
    shutil.copy(ROOT / "exercises" / NAME, course / "exercises")
    before = (course / "exercises" / NAME).read_bytes()
    assert command.main(["reset", "01"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert (course / "exercises" / NAME).read_bytes() == before
    assert os.listdir(course / "exercises") == [NAME]


@pytest.mark.parametrize(
    ("typed", "code"), [("y\n", 0), (" YES \n", 0), ("\n", 1), ("n\n", 1), ("", 1), ("yellow\n", 1)]
)
def test_reset_asks(course, monkeypatch, typed, code, capsys):
    monkeypatch.setattr("sys.stdin", Typed(typed))
    path = course / "exercises" / NAME
    solved = path.read_bytes()
    assert command.main(["reset", "01"]) == code
    printed = capsys.readouterr().out
    assert "01_offsets.backup-1.ipynb.\n[y/N]" in printed
    assert (path.read_bytes() == solved) == (code == 1)
    assert ("left as it is" in printed) == (code == 1)


def test_reset_with_nobody_to_ask_refuses(course, capsys):
    before = (course / "exercises" / NAME).read_bytes()
    assert command.main(["reset", "01"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert (course / "exercises" / NAME).read_bytes() == before


def test_reset_makes_a_notebook_that_is_not_there(course, capsys):
    (course / "exercises" / NAME).unlink()
    assert command.main(["reset", "01", "--yes"]) == 0
    assert sources(course / "exercises" / NAME) == sources(ROOT / "exercises" / NAME)
    assert os.listdir(course / "exercises") == [NAME]


def test_reset_in_an_installation_without_the_repository(course, tmp_path, monkeypatch, capsys):
    """Only exercises/ was handed out: the stub is the copy that the wheel has brought, or there is a message."""
    installed = tmp_path / "share" / "grouped-gemm-course" / "exercises"
    installed.mkdir(parents=True)
    shutil.copy(ROOT / "exercises" / NAME, installed)
    shutil.rmtree(course / "solutions")
    path = course / "exercises" / NAME
    before = path.read_bytes()
    monkeypatch.setattr(places, "checkout", lambda: None)
    monkeypatch.setattr(places.importlib.metadata, "files", lambda name: None)
    assert command.main(["reset", "01", "--yes"]) == 3
    assert "this installation brought no copy" in capsys.readouterr().err
    assert command.main(["solution", "01", "--give-up"]) == 3
    assert "repository" in capsys.readouterr().err
    assert path.read_bytes() == before

    class Brought(type(Path())):
        def locate(self):
            return self

    monkeypatch.setattr(
        places.importlib.metadata, "files", lambda name: [Brought(each) for each in installed.iterdir()]
    )
    assert command.main(["reset", "01", "--yes"]) == 0
    assert sources(path) == sources(ROOT / "exercises" / NAME)


def test_the_wheel_brings_stubs_and_no_solutions(tmp_path):
    """What is installed, an answer may read. A learner's backup is no stub."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    (patterns,) = setuptools["data-files"].values()
    for each in manifest.exercises():
        for name in (f"{each.name}.ipynb", f"{each.name}.backup-1.ipynb"):
            (tmp_path / "exercises").mkdir(exist_ok=True)
            (tmp_path / "exercises" / name).touch()
    brought = {path.name for pattern in patterns for path in tmp_path.glob(pattern)}
    assert brought == {f"{each.name}.ipynb" for each in manifest.exercises()}
    assert all(pattern.startswith("exercises/") for pattern in patterns)


def test_reset_that_cannot_write_says_so_and_changes_nothing(course, monkeypatch, capsys):
    before = (course / "exercises" / NAME).read_bytes()

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("course_kernels.files.os.replace", refuse)
    assert command.main(["reset", "01", "--yes"]) == 3
    assert "cannot be written: Permission denied" in capsys.readouterr().err
    assert (course / "exercises" / NAME).read_bytes() == before
    assert not [name for name in os.listdir(course / "exercises") if name.endswith(".tmp")]


@pytest.mark.parametrize("name", ["reset", "solution"])
def test_no_such_exercise(name, capsys):
    assert command.main([name, "01_ofsets"]) == 2
    assert "did you mean 01_offsets?" in capsys.readouterr().err


# course solution


@pytest.mark.usefixtures("course")
def test_the_solution_comes_after_a_pass(capsys):
    progress.note_result("01", 6, False)
    assert command.main(["solution", "01"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "so far 6 of 10 points" in printed.err
    assert "course solution 01 --give-up" in printed.err
    progress.note_result("01", 10, True)
    assert command.main(["solution", "01"]) == 0
    printed = capsys.readouterr().out
    assert ANSWER in printed
    assert "SOLUTION" not in printed
    compile(printed, "the cell", "exec")
    assert "gave_up" not in progress.load()["01"]


@pytest.mark.usefixtures("course")
def test_giving_up_is_kept_and_costs_no_points(capsys):
    assert command.main(["solution", "01", "--give-up"]) == 0
    assert ANSWER in capsys.readouterr().out
    assert progress.load()["01"] == {"points": 0, "passed": False, "hints": 0, "gave_up": True}
    progress.note_result("01", 10, True)
    assert progress.load()["01"]["points"] == 10


def test_what_is_shown_is_an_answer(course, capsys):
    """Without the markers the cell is what the notebook's is."""
    command.main(["solution", "01", "--give-up"])
    shown = capsys.readouterr().out.splitlines()[1:]
    cell = submission.of_notebook(course / "solutions" / NAME, FIRST.function).splitlines()
    assert shown == [line for line in cell if "### " not in line]
