"""Where a learner's notebooks are found, under today's names and those before lessons were numbered anew."""

from __future__ import annotations

import pytest

from gemm_course.exercises import manifest
from gemm_course.notebook_files import locations

(MASKS,) = manifest.find("03")


@pytest.fixture
def exercises(tmp_path, monkeypatch):
    """An empty `exercises/` beside the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "exercises"
    folder.mkdir()
    return folder


def test_a_notebook_under_its_former_name_is_found(exercises):
    former = exercises / "02_tail_masks.ipynb"
    former.write_text("{}")
    assert locations.folder() == exercises
    assert locations.notebook(MASKS) == former
    assert locations.notebook(MASKS, "02_tail_masks") == former
    assert locations.notebook(MASKS, str(former)) == former


def test_todays_name_comes_first(exercises):
    (exercises / "02_tail_masks.ipynb").write_text("{}")
    (exercises / "03_tail_masks.ipynb").write_text("{}")
    assert locations.notebook(MASKS) == exercises / "03_tail_masks.ipynb"


def test_a_notebook_that_is_nowhere_belongs_under_todays_name(exercises):
    (exercises / "01_offsets.ipynb").write_text("{}")
    assert locations.notebook(MASKS) == exercises / "03_tail_masks.ipynb"
    assert "there is no 03_tail_masks.ipynb here" in locations.missing(MASKS)
