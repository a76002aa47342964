"""Solution notebooks and the exercises made of them.

    python tools/exercises.py              execute every solution, make and execute every exercise
    python tools/exercises.py 03 04a       these
    python tools/exercises.py --adopt draft.py   make a solution of a draft named NN_name.py, then the above
    python tools/exercises.py --check      compare only: are the exercises in step with their solutions?

A draft is jupytext's percent format. Its cell with `### BEGIN SOLUTION` becomes the answer's, its cell with
`### BEGIN HIDDEN TESTS` the check's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat

import render
from gemm_course.exercises import manifest
from gemm_course.notebook import stubs as generate
from gemm_course.notebook.cells import SOLUTION_ID

ROOT = Path(__file__).resolve().parents[1]
SOLUTIONS, EXERCISES = ROOT / "solutions", ROOT / "exercises"


def grading(grade_id: str, points: int | None = None) -> dict:
    """nbgrader's metadata of the answer's cell, or of the check's."""
    found = {"grade": points is not None, "grade_id": grade_id, "locked": points is not None, "schema_version": 3,
             "solution": points is None, "task": False}  # fmt: skip
    return found if points is None else {**found, "points": points}


def adopt(draft: Path) -> None:
    """Make a solution notebook of a draft."""
    (exercise,) = manifest.find(draft.stem)
    notebook = render.build(draft)
    for cell in notebook.cells:
        if "### BEGIN SOLUTION" in cell.source and cell.cell_type == "code":
            cell.metadata["nbgrader"] = grading(SOLUTION_ID)
        elif "### BEGIN HIDDEN TESTS" in cell.source:
            cell.metadata["nbgrader"] = grading(generate.CHECK_ID, exercise.points)
    SOLUTIONS.mkdir(exist_ok=True)
    generate.write(notebook, SOLUTIONS / f"{exercise.name}.ipynb")


def execute(notebook: dict, path: Path) -> None:
    """Run a notebook in its folder, and store it without what differs from machine to machine."""
    path.parent.mkdir(exist_ok=True)
    node = nbformat.reads(json.dumps(notebook), as_version=nbformat.NO_CONVERT)
    for cell in node.cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key in ("nbgrader", "tags")}
    path.write_text(asyncio.run(render.executed(node, path.parent)), encoding="utf-8", newline="\n")


def cells(notebook: dict) -> list[tuple]:
    """What a solution decides about each cell of its exercise."""
    return [(cell["id"], cell["cell_type"], "".join(cell["source"]), cell["metadata"]) for cell in notebook["cells"]]


def differences(exercise: manifest.Exercise) -> list[str]:
    """How an exercise departs from its solution, and what the solution lacks; empty when all is in step."""
    solution, made = (folder / f"{exercise.name}.ipynb" for folder in (SOLUTIONS, EXERCISES))
    if missing := [str(path.relative_to(ROOT)) for path in (solution, made) if not path.exists()]:
        return [f"{', '.join(missing)} does not exist"]
    source = generate.read(solution)
    found = generate.problems(source, exercise)
    if not found and cells(generate.stub(source, exercise)) != cells(generate.read(made)):
        found.append("the exercise is not what its solution makes")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("exercises", nargs="*", metavar="NN", help="exercises; all when none is given")
    parser.add_argument("--check", action="store_true", help="compare only, execute nothing")
    parser.add_argument("--adopt", type=Path, metavar="DRAFT", help="make a solution notebook of a draft first")
    arguments = parser.parse_args()
    if arguments.adopt:
        adopt(arguments.adopt)
        arguments.exercises.append(arguments.adopt.stem)
    chosen = [e for name in arguments.exercises for e in manifest.find(name)] or list(manifest.exercises())
    # The solutions pass: not into the progress of whoever makes the exercises.
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        return make(chosen, arguments.check)


def make(chosen: list[manifest.Exercise], only_compare: bool) -> int:
    for exercise in chosen:
        if not only_compare:
            path = SOLUTIONS / f"{exercise.name}.ipynb"
            solution = generate.read(path)
            generate.write_help_line(solution, exercise)
            execute(solution, path)
            execute(generate.stub(generate.read(path), exercise), EXERCISES / path.name)
        found = differences(exercise)
        print(f"{exercise.name}: {'; '.join(found) or 'in step'}")
        if found:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
