"""Working copies are made and updated, and a learner's changes are never lost."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from gemm_course.exercises import manifest
from gemm_course.notebook import cells, copies, locations, stubs
from places import ROOT

LESSON = "notebooks/00_start_here.ipynb"
(MASKS,) = manifest.find("03")
EXERCISE = f"exercises/{MASKS.name}.ipynb"
ANSWER = f"def {MASKS.function}(a):\n    return 'the answer of a learner'"


@pytest.fixture
def root(tmp_path):
    """A checkout with one lesson, the exercises and a glossary."""
    for folder in ("exercises", "solutions"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*backup*", ".*"))
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "src").mkdir()
    shutil.copy(ROOT / LESSON, tmp_path / "notebooks")
    shutil.copy(ROOT / "notebooks" / "glossary.md", tmp_path / "notebooks")
    copies.update(tmp_path)
    return tmp_path


def change(path, old, new):
    """Replace text in the cells of a notebook; the old text must be there."""
    notebook = stubs.read(path)
    texts = ["".join(each["source"]) for each in notebook["cells"]]
    assert any(old in text for text in texts)
    for cell, text in zip(notebook["cells"], texts):
        cell["source"] = text.replace(old, new).splitlines(keepends=True)
    stubs.write(notebook, path)


def publish(root, old, new):
    """Make a new version of the exercise, from a solution with replaced text."""
    change(root / "solutions" / f"{MASKS.name}.ipynb", old, new)


def answer(path, source=None):
    """Write a learner's answer into a copy; returns the text of the answer's cell."""
    notebook = stubs.read(path)
    (cell,) = (each for each in notebook["cells"] if cells.SOLUTION_ID in str(each["metadata"]))
    if source is not None:
        cell["source"] = source.splitlines(keepends=True)
        stubs.write(notebook, path)
    return "".join(cell["source"])


def texts(path):
    return ["".join(each["source"]) for each in stubs.read(path)["cells"]]


def names(root, folder):
    return sorted(path.name for path in (root / locations.COPIES / folder).iterdir())


def test_copies_have_working_links_and_the_checkout_does_not_change(root):
    mine = root / locations.COPIES
    assert texts(mine / LESSON) == texts(root / LESSON)
    assert stubs.read(mine / LESSON)["metadata"]["language_info"]["codemirror_mode"], "else JupyterLab adds it"
    assert [each.get("outputs") for each in stubs.read(mine / LESSON)["cells"]] == [
        each.get("outputs") for each in stubs.read(root / LESSON)["cells"]
    ]
    assert (mine / "notebooks" / "glossary.md").read_bytes() == (root / "notebooks" / "glossary.md").read_bytes()
    assert names(root, "exercises") == [f"{each.name}.ipynb" for each in manifest.exercises()]
    assert (mine / "notebooks" / "../src").resolve() == root / "src"
    assert not (mine / "solutions").exists(), "nobody finds the answer beside the exercise"
    for path in [LESSON, EXERCISE]:
        assert (root / path).read_bytes() == (ROOT / path).read_bytes()
    before = {path: path.stat().st_mtime_ns for path in mine.rglob("*")}
    assert copies.update(root) == []
    assert {path: path.stat().st_mtime_ns for path in mine.rglob("*")} == before


def test_each_relative_link_of_the_readme_leads_to_a_file_beside_the_copies(tmp_path):
    for path in ROOT.iterdir():
        if not path.name.startswith((".", locations.COPIES)):
            (tmp_path / path.name).symlink_to(path)
    copies.update(tmp_path)
    mine = tmp_path / locations.COPIES
    readme = (mine / "README.md").read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r'(?:\]\(|src=")(?!\w+://)([^)"]+)', readme)]
    assert len(links) > 20
    assert [link for link in links if not (mine / link).is_file()] == []
    assert {path.suffix for path in (mine / "site").iterdir()} == {".md"}, "the site's build shows solutions"


def test_copies_are_made_on_a_file_system_without_links(tmp_path, root, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(copies.os, "symlink", refuse)
    shutil.rmtree(root / locations.COPIES)
    assert f"{locations.COPIES}/" in copies.update(root)[0]
    assert (root / locations.COPIES / LESSON).exists()


def test_a_copy_that_was_only_run_is_replaced(root):
    mine = root / locations.COPIES / LESSON
    notebook = stubs.read(mine)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], 7
    # JupyterLab appends an empty cell after the last one, and adds metadata about the kernel.
    notebook["cells"].append({"cell_type": "code", "id": "x", "metadata": {}, "outputs": [], "source": []})
    notebook["metadata"]["language_info"]["version"] = "3.99"
    stubs.write(notebook, mine)
    assert copies.update(root) == []
    change(root / LESSON, "# 00", "# 00 (new)")
    assert copies.update(root) == [f"New versions of files that you had not changed: {LESSON}"]
    assert texts(mine) == texts(root / LESSON)
    assert names(root, "notebooks") == ["00_start_here.ipynb", "glossary.md"]


def test_a_changed_lesson_is_kept_beside_the_new_one_each_time(root):
    mine = root / locations.COPIES / LESSON
    for number, name in enumerate(["00_start_here.yours.ipynb", "00_start_here.yours-2.ipynb"]):
        change(mine, "# 00", f"# My {number} 00")
        written = mine.read_bytes()
        assert copies.update(root) == [], "no new version, nothing to do"
        assert mine.read_bytes() == written
        change(root / LESSON, "# 00", f"# 00 {number}")
        (line,) = copies.update(root)
        assert name in line
        assert mine.with_name(name).read_bytes() == written
        assert texts(mine) == texts(root / LESSON)
    glossary = mine.with_name("glossary.md")
    glossary.write_text("mine")
    (root / "notebooks" / "glossary.md").write_text("new")
    copies.update(root)
    assert (glossary.read_text(), mine.with_name("glossary.yours.md").read_text()) == ("new", "mine")


def test_a_new_version_of_an_exercise_keeps_the_answer(root):
    mine = root / locations.COPIES / EXERCISE
    answer(mine, ANSWER)
    publish(root, "# Exercise 03", "# Exercise 03 (new)")
    (line,) = copies.update(root)
    assert line == f"{EXERCISE} has a new version, with your answer in it"
    assert answer(mine) == ANSWER
    assert texts(mine)[0].startswith("# Exercise 03 (new)")
    assert names(root, "exercises") == names(root, "../exercises"), "there was nothing else to keep"
    assert copies.update(root) == []


def test_half_an_answer_is_kept_and_an_empty_one_gets_the_new_hole(root, monkeypatch):
    mine = root / locations.COPIES / EXERCISE
    half = answer(mine) + "\n    # half of it"
    answer(mine, half)
    publish(root, "# Exercise 03", "# Exercise 03 (new)")
    copies.update(root)
    assert answer(mine) == half
    other = f"exercises/{manifest.exercises()[0].name}.ipynb"
    change(root / locations.COPIES / other, "# Exercise 01", "# My exercise 01")
    change(root / "solutions" / other.partition("/")[2], "# Exercise 01", "# Exercise 01 (new)")
    monkeypatch.setattr(stubs, "hole", lambda exercise: f'raise NotImplementedError("TODO {exercise.id}: reworded")')
    (line,) = (each for each in copies.update(root) if other in each and "your" in each)
    assert "your other changes are in 01_offsets.yours.ipynb" in line
    assert "TODO 01: reworded" in answer(root / locations.COPIES / other), "a hole's words make no other task"


def test_other_changes_in_an_exercise_are_kept_beside(root):
    mine = root / locations.COPIES / EXERCISE
    answer(mine, ANSWER)
    change(mine, "# Exercise 03", "My notes\n# Exercise 03")
    written = mine.read_bytes()
    publish(root, "# Exercise 03", "# Exercise 03 (new)")
    (line,) = copies.update(root)
    assert "with your answer in it; your other changes are in 03_tail_masks.yours.ipynb" in line
    assert answer(mine) == ANSWER
    assert mine.with_name("03_tail_masks.yours.ipynb").read_bytes() == written


def test_an_answer_to_another_task_stays_after_every_update(root):
    mine = root / locations.COPIES / EXERCISE
    answer(mine, ANSWER)
    written = mine.read_bytes()
    publish(root, f"def {MASKS.function}(", f"def {MASKS.function}(one_more, ")
    for name in ("03_tail_masks.new.ipynb", "03_tail_masks.new-2.ipynb"):
        (line,) = copies.update(root)
        assert f"may not fit: yours stays, the new one is {name} beside it" in line
        assert mine.read_bytes() == written
        assert "one_more" in answer(mine.with_name(name))
        assert copies.update(root) == []
        publish(root, "# Exercise 03", "# Exercise 03 (new)")
    mine.with_name("03_tail_masks.new-2.ipynb").replace(mine)
    assert "New versions" in copies.update(root)[0], "the learner took it, so it is theirs"


def test_new_comments_and_docstrings_do_not_change_the_task(root):
    (before,) = (cell for cell in texts(root / EXERCISE) if f"def {MASKS.function}(" in cell)
    publish(root, '    """', '    """In other words: ')
    mine = root / locations.COPIES / EXERCISE
    answer(mine, ANSWER)
    assert "with your answer in it" in copies.update(root)[0]
    assert "In other words" not in before


@pytest.mark.parametrize("text", ["no notebook", "{}", '{"cells": []}'])
def test_a_copy_that_is_no_notebook_any_more_is_kept(root, text):
    mine = root / locations.COPIES
    for path in (LESSON, EXERCISE):
        (mine / path).write_text(text)
    assert copies.update(root) == []
    change(root / LESSON, "# 00", "# 00 (new)")
    publish(root, "# Exercise 03", "# Exercise 03 (new)")
    assert len(copies.update(root)) == 2
    assert (mine / "notebooks" / "00_start_here.yours.ipynb").read_text() == text
    assert (mine / EXERCISE).read_text() == text
    assert (mine / "exercises" / "03_tail_masks.new.ipynb").exists()


@pytest.mark.parametrize("record", [None, "[]", "{", '{"a": 1}'])
def test_without_its_record_everything_that_differs_counts_as_changed(root, record):
    mine = root / locations.COPIES
    answer(mine / EXERCISE, ANSWER)
    change(mine / LESSON, "# 00", "My notes")
    (mine / copies.RECORD).unlink()
    if record:
        (mine / copies.RECORD).write_text(record)
    assert len(copies.update(root)) == 2
    assert answer(mine / EXERCISE) == ANSWER
    assert "My notes" in texts(mine / "notebooks" / "00_start_here.yours.ipynb")[0]
    assert json.loads((mine / copies.RECORD).read_text())[LESSON]
    assert copies.update(root) == []


def test_a_deleted_copy_is_made_again_and_a_removed_lesson_goes_unless_it_was_changed(root):
    mine = root / locations.COPIES
    (mine / EXERCISE).unlink()
    shutil.copy(root / LESSON, root / "notebooks" / "01_other.ipynb")
    shutil.copy(root / LESSON, root / "notebooks" / "02_another.ipynb")
    copies.update(root)
    assert "TODO" in answer(mine / EXERCISE)
    change(mine / "notebooks" / "02_another.ipynb", "# 00", "My notes")
    for name in ("01_other", "02_another"):
        (root / "notebooks" / f"{name}.ipynb").unlink()
    (line,) = copies.update(root)
    assert line == "notebooks/02_another.ipynb is no longer part of the course; yours stays"
    assert names(root, "notebooks") == ["00_start_here.ipynb", "02_another.ipynb", "glossary.md"]


def test_an_answer_in_the_checkout_is_carried_into_its_copy(root):
    shutil.rmtree(root / locations.COPIES)
    answer(root / EXERCISE, ANSWER)
    copies.update(root)
    assert answer(root / locations.COPIES / EXERCISE) == ANSWER
    publish(root, "# Exercise 03", "# Exercise 03 (new)")
    assert "with your answer in it" in copies.update(root)[0]
    assert answer(root / locations.COPIES / EXERCISE) == ANSWER
