"""Where a learner's notebooks are found."""

from __future__ import annotations

import pytest

from gemm_course.exercises import manifest
from gemm_course.notebook import locations

(MASKS,) = manifest.find("03")


@pytest.fixture
def exercises(tmp_path, monkeypatch):
    """An empty `exercises/` beside the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "exercises"
    folder.mkdir()
    return folder


def test_a_notebook_that_is_nowhere_belongs_into_the_exercises(exercises):
    (exercises / "01_offsets.ipynb").write_text("{}")
    assert locations.notebook(MASKS) == exercises / "03_tail_masks.ipynb"
    assert "there is no 03_tail_masks.ipynb here" in locations.missing(MASKS)


def test_working_copies_come_before_what_they_were_made_from(exercises):
    theirs = exercises.parent / locations.COPIES / "exercises"
    theirs.mkdir(parents=True)
    for folder in (exercises, theirs):
        (folder / "01_offsets.ipynb").write_text("{}")
    assert locations.folder() == theirs
    assert locations.notebook(MASKS) == theirs / "03_tail_masks.ipynb", "where `course reset` would put it"


def test_working_copies_are_found_from_inside_and_without_any_the_exercises_of_the_checkout(exercises, monkeypatch):
    (exercises / "01_offsets.ipynb").write_text("{}")
    assert locations.folder() == exercises
    lessons, theirs = (exercises.parent / locations.COPIES / each for each in ("notebooks", "exercises"))
    for folder in (lessons, theirs):
        folder.mkdir(parents=True)
    monkeypatch.chdir(lessons)
    assert locations.folder() == exercises, "the folder is empty"
    (theirs / "01_offsets.ipynb").write_text("{}")
    assert locations.folder() == theirs
