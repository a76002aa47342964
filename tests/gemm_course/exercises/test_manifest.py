"""The manifest: what a TOML file must hold, and which exercise a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_course.exercises import manifest
from gemm_course.notebook import cells
from places import MUTANTS, ROOT

TOML = """
title = "Title"
lesson = "03_lesson"
function = "f"
todo = "write it"
hints = ["a", "b", "c"]
[[checks]]
name = "one"
title = "it holds"
points = 2
"""


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('title = "Title"\n', "", "missing required field `title`"),
        ('title = "Title"', 'title = ""', r"length >= 1 - at `\$.title`"),
        ('title = "Title"', "title = 3", r"Expected `str`, got `int` - at `\$.title`"),
        ('todo = "write it"', 'todo = "write it"\ncolour = "red"', "unknown field `colour`"),
        ('todo = "write it"', 'todo = "write it"\nid = "04"', r"unknown fields \['id'\]"),
        ('todo = "write it"', 'todo = "write it"\nrun = "os"', r"unknown fields \['run'\]"),
        ('["a", "b", "c"]', '["a", "b"]', r"length >= 3 - at `\$.hints`"),
        ("points = 2", "points = 0", r">= 1 - at `\$.checks\[0\].points`"),
        ("points = 2", 'points = 2\ncolour = "red"', "unknown field `colour`"),
        ("points = 2", 'points = 2\n[[checks]]\nname = "one"\ntitle = "x"\npoints = 1', "different names"),
        ("[[checks]]", "[[other]]", "unknown field|missing required field"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, before, after, says):
    path = tmp_path / "e03_title" / "exercise.toml"
    path.parent.mkdir()
    path.write_text(TOML)
    found = manifest.read(path)
    assert (found.points, found.run) == (2, "gemm_course.exercises.e03_title.run")
    assert before in TOML
    path.write_text(TOML.replace(before, after))
    with pytest.raises(ValueError, match=rf"^e03_title.*({says})"):
        manifest.read(path)


def test_a_folder_is_named_like_its_notebook(tmp_path):
    with pytest.raises(ValueError, match="must be named like"):
        manifest.read(tmp_path / "title" / "exercise.toml")


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("2", ["02"]), ("03", ["03"]), ("3", ["03"]), ("04", ["04a", "04b"]), ("4", ["04a", "04b"]), ("04b", ["04b"]),
        ("03_tail_masks", ["03"]), ("exercises/03_tail_masks.ipynb", ["03"]), ("product_tile", ["03"]),
    ],
)  # fmt: skip
def test_names_of_an_exercise(name, ids):
    assert [each.id for each in manifest.find(name)] == ids


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("02_tail_mask", "did you mean 03_tail_masks"),
        ("05_tail_masks", "did you mean 03_tail_masks"),
        ("xyz", "there are 01_offsets, "),
        ("17", "^no exercise '17'; there are 01_offsets, "),
        ("03c", "^no exercise '03c'; there are 01_offsets, "),
    ],
)
def test_what_is_no_name_gets_the_nearest_and_a_number_all(name, says):
    with pytest.raises(ValueError, match=says):
        manifest.find(name)


NAMES = {exercise.name for exercise in manifest.exercises()}


@pytest.mark.parametrize("exercise", manifest.exercises(), ids=lambda exercise: exercise.id)
def test_the_line_of_a_hole_is_not_cut_off(exercise):
    """JupyterLab shows 120 characters of a cell in a window of 1400 pixels."""
    source = cells.of_notebook(ROOT / "exercises" / f"{exercise.name}.ipynb", exercise.function)
    holes = [line for line in source.splitlines() if f"TODO {exercise.id}" in line]
    assert holes
    assert [line for line in holes if len(line) > 120] == []


def test_no_mutants_without_an_exercise():
    assert {path.stem for path in MUTANTS.iterdir()} == NAMES


def test_every_exercise_has_its_examiner():
    for exercise in manifest.exercises():
        examiner = manifest.examiner(exercise)
        assert examiner.__name__ == exercise.run.replace(".run", ".examine")
        assert callable(examiner.draw)
        assert callable(examiner.examine)


def test_every_exercise_has_its_tests():
    assert {path.stem.removeprefix("test_e") for path in Path(__file__).parent.glob("test_e[0-9]*.py")} == NAMES
