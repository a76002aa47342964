"""nbgrader takes the solutions as they are: it makes the exercises of them, and grades what is handed in.

It is installed from the registry, into an environment of its own over this one, which pytest's cache keeps: in this
one it would add its menus to everybody's JupyterLab.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import mutants
from gemm_course.exercises import manifest
from gemm_course.notebook import cells, stubs
from places import ROOT

REQUIREMENT = "nbgrader>=0.9.5,<0.10"
OFFSETS, MASKS = manifest.find("01_offsets") + manifest.find("03_tail_masks")
GRADES = """
import json
from nbgrader.api import Gradebook
with Gradebook("sqlite:///gradebook.db") as book:
    print(json.dumps({
        f"{sent.student.id} {each.name}": [each.score, each.max_score]
        for sent in book.assignment_submissions("ps1") for each in sent.notebooks
    }))
"""


@pytest.fixture(scope="module")
def nbgrader_python(pytestconfig):
    """The Python of an environment that has nbgrader and, behind it, everything that this one has."""
    folder = Path(pytestconfig.cache.mkdir("nbgrader"))
    site = sysconfig.get_path("purelib")
    ready, wanted = folder / "ready", f"{REQUIREMENT}\n{sys.version}\n{site}"
    python = folder / "venv" / "bin" / "python"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text() != wanted:
            ready.unlink(missing_ok=True)
            run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder / "venv")])
            (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
            (packages / "outer.pth").write_text(f"import site; site.addsitedir({site!r})\n")
            run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT])
            run([str(python), "-m", "ipykernel", "install", "--sys-prefix"])
            ready.write_text(wanted)
    return python


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def nbgrader(nbgrader_python, tmp_path):
    """Runs nbgrader in an empty course, on a machine that keeps no progress."""
    environment = dict(
        os.environ,
        PATH=f"{nbgrader_python.parent}{os.pathsep}{os.environ['PATH']}",
        JUPYTER_CONFIG_DIR=str(tmp_path / "config"),
        JUPYTER_DATA_DIR=str(tmp_path / "data"),
        JUPYTER_PREFER_ENV_PATH="1",
        IPYTHONDIR=str(tmp_path / "ipython"),
        XDG_STATE_HOME="/dev/null/state",
    )
    course = tmp_path / "course"
    course.mkdir()

    def call(*arguments):
        return run([str(nbgrader_python), *arguments], cwd=course, env=environment)

    return course, call


def code(notebook):
    return [(cell["id"], "".join(cell["source"])) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def one_of_each_form():
    """An exercise of each form that its answer's cell has, and the two that are handed in. The text of the others
    does not matter: nbgrader cuts the lines between its marks."""
    forms = {}
    for exercise in manifest.exercises():
        (cell,) = (
            cell
            for cell in stubs.read(ROOT / "solutions" / f"{exercise.name}.ipynb")["cells"]
            if cell["metadata"].get("nbgrader", {}).get("grade_id") == cells.SOLUTION_ID
        )
        forms.setdefault(tuple(re.findall(r"^ *### \w+ SOLUTION", "".join(cell["source"]), re.MULTILINE)), exercise)
    return {each.name: each for each in (OFFSETS, MASKS, *forms.values())}.values()


def with_nbgraders_hole(exercise, source):
    """An exercise's cell as nbgrader words its hole."""
    hole = re.escape(stubs.hole(exercise))
    return re.sub(rf"^([ ]*){hole}$", r"\1# YOUR CODE HERE\n\1raise NotImplementedError()", source, flags=re.MULTILINE)


def hand_in(course, student, exercise, notebook, source=None):
    """Put a notebook where nbgrader expects it; with the answer's cell replaced, if there is a source."""
    for cell in notebook["cells"]:
        if source is not None and cell["metadata"].get("nbgrader", {}).get("grade_id") == cells.SOLUTION_ID:
            cell["source"] = source
    folder = course / "submitted" / student / "ps1"
    folder.mkdir(parents=True, exist_ok=True)
    stubs.write(notebook, folder / f"{exercise.name}.ipynb")


def test_nbgrader_makes_the_exercises_and_grades_the_answers(nbgrader):
    course, call = nbgrader
    source, release = course / "source" / "ps1", course / "release" / "ps1"
    source.mkdir(parents=True)
    for exercise in one_of_each_form():
        name = f"{exercise.name}.ipynb"
        (source / name).write_bytes((ROOT / "solutions" / name).read_bytes())
    call("-m", "nbgrader", "generate_assignment", "ps1")
    for exercise in one_of_each_form():
        name = f"{exercise.name}.ipynb"
        stub = [
            (cell, with_nbgraders_hole(exercise, text)) for cell, text in code(stubs.read(ROOT / "exercises" / name))
        ]
        assert code(stubs.read(release / name)) == stub

    def solution(exercise):
        return cells.of_notebook(ROOT / "solutions" / f"{exercise.name}.ipynb", exercise.function)

    def released(exercise):
        return stubs.read(release / f"{exercise.name}.ipynb")

    hand_in(course, "ann", OFFSETS, released(OFFSETS), mutants.of(OFFSETS.name)["host_sync"].source)
    hand_in(course, "ann", MASKS, released(MASKS), solution(MASKS))
    hand_in(course, "bob", OFFSETS, stubs.read(ROOT / "exercises" / f"{OFFSETS.name}.ipynb"))
    call("-m", "nbgrader", "autograde", "ps1", "--create")

    grades = json.loads(call("-c", GRADES))
    assert grades[f"ann {MASKS.name}"] == [MASKS.points, MASKS.points]
    assert grades[f"bob {OFFSETS.name}"] == [0, OFFSETS.points]
    points, possible = grades[f"ann {OFFSETS.name}"]
    assert 0 < points < possible == OFFSETS.points, "what holds earns its points, without the rest"
