"""`course lab`: it becomes the starter of the checkout that it finds, or says why it cannot."""

from __future__ import annotations

import sys

import pytest

from gemm_course.cli import app as command
from gemm_course.cli import lab
from gemm_course.notebook import locations
from places import ROOT


def test_lab_becomes_the_courses_starter(monkeypatch):
    started = []
    monkeypatch.setattr(lab.os, "execv", lambda *call: started.append(call))
    command.main(["lab", "--port", "9001"])
    assert started == [(sys.executable, [sys.executable, str(ROOT / "tools" / "lab.py"), "9001"])]


def test_lab_finds_the_checkout_around_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(locations, "__file__", str(tmp_path / "site" / "gemm_course" / "notebook" / "x.py"))
    monkeypatch.chdir(tmp_path)
    assert lab.checkout() is None
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "lab.py").touch()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert lab.checkout() == tmp_path


def test_lab_says_why_it_cannot(monkeypatch, capsys):
    monkeypatch.setattr(lab.os, "execv", lambda *call: pytest.fail("started"))
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: None)
    assert command.main(["lab"]) == command.CANNOT
    assert "JupyterLab is not installed" in capsys.readouterr().err
    monkeypatch.setattr(lab, "checkout", lambda: None)
    assert command.main(["lab"]) == command.CANNOT
    assert "Clone the repository" in capsys.readouterr().err


def test_the_option_copies_opens_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(lab.os, "execv", lambda *call: pytest.fail("started"))
    monkeypatch.setattr(lab, "checkout", lambda: tmp_path)
    told = [["made"], []]
    monkeypatch.setattr(lab.copies, "update", lambda root: told.pop(0))
    for expected in ("made", "up to date"):
        assert command.main(["lab", "--copies"]) == command.OK
        assert expected in capsys.readouterr().out

    def refuse(root):
        raise PermissionError("no")

    monkeypatch.setattr(lab.copies, "update", refuse)
    assert command.main(["lab", "--copies"]) == command.CANNOT
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["80", "70000", "x", "-1"])
def test_lab_wants_a_port(port, capsys):
    assert command.main(["lab", "--port", port]) == command.USAGE
    assert f"must be a number from 1024 to 65535, got {port!r}" in capsys.readouterr().err
