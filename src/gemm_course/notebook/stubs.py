"""Solutions to exercises: a hole that says TODO replaces the lines between nbgrader's markers.

`solutions/*.ipynb` is the single source. Only JSON is needed here, so `course reset` works wherever the course does.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

from course_kernels.files import write_atomically
from gemm_course.exercises.manifest import Exercise
from gemm_course.notebook.cells import SOLUTION_ID

CHECK_ID = "check"
_BEGIN, _END = "### BEGIN SOLUTION", "### END SOLUTION"
_IMPORT = "from gemm_course import check, hint, solution"
_HIDDEN = re.compile(r"\n?[ \t]*### BEGIN HIDDEN TESTS\n.*?### END HIDDEN TESTS[^\n]*", re.DOTALL)


def hole(exercise: Exercise) -> str:
    """The statement where an answer has to be written."""
    return f'raise NotImplementedError("TODO {exercise.id}: {exercise.todo}")'


def without_solution(source: str, exercise: Exercise) -> str:
    """A solution's cell with a hole in place of every solution. Raises ValueError for a marker without its partner."""
    kept, inside = [], False
    for line in source.splitlines():
        marker = line.strip()
        if marker in (_BEGIN, _END):
            if inside == (marker == _BEGIN):
                raise ValueError(f"{exercise.name}: {marker!r} without its partner")
            inside = marker == _BEGIN
            if inside:
                kept.append(line[: len(line) - len(line.lstrip())] + hole(exercise))
        elif not inside:
            kept.append(line)
    if inside:
        raise ValueError(f"{exercise.name}: {_BEGIN!r} without its partner")
    return "\n".join(kept)


def solution_lines(source: str) -> list[tuple[str, bool]]:
    """The lines of a solution's cell without its markers, and whether each was between them."""
    lines, inside = [], False
    for line in source.splitlines():
        if line.strip() in (_BEGIN, _END):
            inside = line.strip() == _BEGIN
        else:
            lines.append((line, inside))
    return lines


def help_line(exercise: Exercise) -> str:
    """The line on hints at an exercise's end."""
    return (
        f'Stuck? Run `hint("{exercise.id}")` in a new cell; each call gives one more hint. In a terminal: '
        f"`course hint {exercise.id}`."
    )


def write_help_line(notebook: dict, exercise: Exercise) -> None:
    """Put the line on hints into a solution's last text, in place of the one that begins with "Stuck?"."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            lines = "".join(cell["source"]).splitlines(keepends=True)
            cell["source"] = [
                help_line(exercise) + "\n" * line.endswith("\n") if line.startswith("Stuck?") else line
                for line in lines
            ]


def next_step(notebook: dict | None) -> str:
    """The paragraph at an exercise's end with the link to the next lesson; empty if there is none."""
    texts = ["".join(cell["source"]) for cell in (notebook or {"cells": []})["cells"]]
    paragraphs = [each.strip() for text in texts for each in text.split("\n\n")]
    return next((each for each in reversed(paragraphs) if each.startswith("Next: ")), "")


def stub(solution: dict, exercise: Exercise) -> dict:
    """The exercise notebook of a solution notebook: holes, no hidden tests, no outputs of the cells that change."""
    notebook = copy.deepcopy(solution)
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        changed = _HIDDEN.sub("", without_solution(source, exercise))
        if changed != source:
            cell["source"] = changed.splitlines(keepends=True)
            if cell["cell_type"] == "code":
                cell["outputs"], cell["execution_count"] = [], None
    return notebook


def read(path: Path) -> dict:
    """A notebook, as JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(notebook: dict, path: Path) -> None:
    """Store a notebook as Jupyter does, in one step: the same bytes for the same notebook."""
    write_atomically(path, json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def problems(solution: dict, exercise: Exercise) -> list[str]:
    """The faults of a solution notebook; empty if it can be handed out."""
    found = []
    code = [cell for cell in solution["cells"] if cell["cell_type"] == "code"]
    by_id = {cell["metadata"].get("nbgrader", {}).get("grade_id"): cell for cell in code}
    for grade_id in (SOLUTION_ID, CHECK_ID):
        if grade_id not in by_id:
            found.append(f"no cell has the grade_id {grade_id!r}")
    if found:
        return found
    answer, check = "".join(by_id[SOLUTION_ID]["source"]), "".join(by_id[CHECK_ID]["source"])
    if f"def {exercise.function}(" not in answer or _BEGIN not in answer:
        found.append(f"the answer's cell must define {exercise.function} and have a solution in it")
    if f"check({exercise.function})" not in check or "### BEGIN HIDDEN TESTS" not in check:
        found.append(f"the check's cell must call check({exercise.function}) and have hidden tests")
    points = by_id[CHECK_ID]["metadata"]["nbgrader"].get("points")
    if points != exercise.points:
        found.append(f"the check's cell says {points} points, the manifest {exercise.points}")
    if help_line(exercise) not in "".join(solution["cells"][-1]["source"]).splitlines():
        found.append(
            "its last cell lacks the line on hints, which tools/exercises.py writes where one begins with Stuck?"
        )
    if not any(_IMPORT in "".join(cell["source"]) for cell in code):
        found.append(f"no cell has `{_IMPORT}`")
    holes = sum("".join(cell["source"]).count(_BEGIN) for cell in code if cell is not by_id[SOLUTION_ID])
    if holes:
        found.append("solutions stand outside of the answer's cell")
    return found
