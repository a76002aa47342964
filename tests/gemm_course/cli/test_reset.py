"""`course reset` keeps what the learner wrote."""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from gemm_course import progress
from gemm_course.cli import app as command
from gemm_course.exercises import manifest
from gemm_course.notebook import locations, stubs
from places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

(FIRST,) = manifest.find("01")
NAME = f"{FIRST.name}.ipynb"


class Typed(io.StringIO):
    """A person at a terminal."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _nobody_types(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())


def sources(path):
    return ["".join(cell["source"]) for cell in stubs.read(path)["cells"]]


def test_reset_puts_the_stub_back_and_keeps_every_version(checkout, capsys):
    path = checkout / "exercises" / NAME
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
    assert (checkout / "exercises" / "01_offsets.backup-1.ipynb").read_bytes() == solved
    assert (checkout / "exercises" / "01_offsets.backup-2.ipynb").read_text() == "no notebook any more"
    assert len(os.listdir(checkout / "exercises")) == 3
    assert progress.load()["01"]["passed"]


def test_reset_of_a_stub_does_nothing(checkout, capsys):
    shutil.copy(ROOT / "exercises" / NAME, checkout / "exercises")
    before = (checkout / "exercises" / NAME).read_bytes()
    assert command.main(["reset", "01"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert (checkout / "exercises" / NAME).read_bytes() == before
    assert os.listdir(checkout / "exercises") == [NAME]


@pytest.mark.parametrize(
    ("typed", "code"), [("y\n", 0), (" YES \n", 0), ("\n", 1), ("n\n", 1), ("", 1), ("yellow\n", 1)]
)
def test_reset_asks(checkout, monkeypatch, typed, code, capsys):
    monkeypatch.setattr("sys.stdin", Typed(typed))
    path = checkout / "exercises" / NAME
    solved = path.read_bytes()
    assert command.main(["reset", "01"]) == code
    printed = capsys.readouterr().out
    assert "01_offsets.backup-1.ipynb.\n[y/N]" in printed
    assert (path.read_bytes() == solved) == (code == 1)
    assert ("left as it is" in printed) == (code == 1)


def test_reset_with_nobody_to_ask_refuses(checkout, capsys):
    before = (checkout / "exercises" / NAME).read_bytes()
    assert command.main(["reset", "01"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert (checkout / "exercises" / NAME).read_bytes() == before


def test_reset_makes_a_notebook_that_is_not_there(checkout, capsys):
    (checkout / "exercises" / NAME).unlink()
    assert command.main(["reset", "01", "--yes"]) == 0
    assert sources(checkout / "exercises" / NAME) == sources(ROOT / "exercises" / NAME)
    assert os.listdir(checkout / "exercises") == [NAME]


def test_reset_in_an_installation_without_the_repository(checkout, tmp_path, monkeypatch, capsys):
    """Only exercises/ was handed out: the stub is the copy that the wheel has brought, or there is a message."""
    installed = tmp_path / "share" / "grouped-gemm-course" / "exercises"
    installed.mkdir(parents=True)
    shutil.copy(ROOT / "exercises" / NAME, installed)
    shutil.rmtree(checkout / "solutions")
    path = checkout / "exercises" / NAME
    before = path.read_bytes()
    monkeypatch.setattr(locations, "checkout", lambda: None)
    monkeypatch.setattr(locations.importlib.metadata, "files", lambda name: None)
    assert command.main(["reset", "01", "--yes"]) == 3
    assert "this installation brought no copy" in capsys.readouterr().err
    assert command.main(["solution", "01", "--give-up"]) == 3
    assert "repository" in capsys.readouterr().err
    assert path.read_bytes() == before

    class Brought(type(Path())):
        def locate(self):
            return self

    monkeypatch.setattr(
        locations.importlib.metadata, "files", lambda name: [Brought(each) for each in installed.iterdir()]
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


def test_reset_that_cannot_write_says_so_and_changes_nothing(checkout, monkeypatch, capsys):
    before = (checkout / "exercises" / NAME).read_bytes()

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("course_kernels.files.os.replace", refuse)
    assert command.main(["reset", "01", "--yes"]) == 3
    assert "cannot be written: Permission denied" in capsys.readouterr().err
    assert (checkout / "exercises" / NAME).read_bytes() == before
    assert not [name for name in os.listdir(checkout / "exercises") if name.endswith(".tmp")]


@pytest.mark.parametrize("name", ["reset", "solution"])
def test_no_such_exercise(name, capsys):
    assert command.main([name, "01_ofsets"]) == 2
    assert "did you mean 01_offsets?" in capsys.readouterr().err
