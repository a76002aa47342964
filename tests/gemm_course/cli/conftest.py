"""What tests of subcommands share: progress of their own, and folders with exercises."""

from __future__ import annotations

import shutil

import pytest

from gemm_course.exercises import manifest
from gemm_course.notebook import locations
from places import ROOT


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    """No width of a terminal's in the environment, where xdist puts one."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A folder with exercises/ in it, and no checkout around."""
    root = tmp_path / "course"
    shutil.copytree(ROOT / "exercises", root / "exercises", ignore=shutil.ignore_patterns("*backup*", ".*"))
    monkeypatch.setattr(locations, "checkout", lambda: None)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one exercise, solved."""
    first = manifest.exercises()[0]
    root = tmp_path / "course"
    (root / "exercises").mkdir(parents=True)
    shutil.copytree(ROOT / "solutions", root / "solutions")
    shutil.copy(ROOT / "solutions" / f"{first.name}.ipynb", root / "exercises")
    monkeypatch.setattr(locations, "checkout", lambda: root)
    monkeypatch.chdir(root)
    return root
