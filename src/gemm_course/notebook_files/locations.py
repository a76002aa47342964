"""Where an exercise's notebook, its stub and its solution are: in a checkout, or where the learner has put them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from pathlib import Path

from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import Exercise
from gemm_course.notebook_files import stubs as generate

DISTRIBUTION = "grouped-gemm-course"


def checkout() -> Path | None:
    """The checkout that this package runs from, or the one around the working directory.

    Returns:
        Its root; None where there is neither.
    """
    for root in (Path(__file__).resolve().parents[3], Path.cwd(), *Path.cwd().parents):
        if (root / "tools" / "lab.py").is_file() and (root / "notebooks").is_dir():
            return root
    return None


def folder() -> Path | None:
    """Where the learner's notebooks are: the nearest folder that holds any.

    Returns:
        An `exercises/` around the working directory, the working directory itself (unless it holds solutions), or the
        `exercises/` of the course's checkout; None where none of them holds an exercise.
    """
    here = Path.cwd()
    places = [folder / "exercises" for folder in (here, *here.parents)]
    if here.name != "solutions":
        places.append(here)
    if root := checkout():
        places.append(root / "exercises")
    return next((place for place in places if any(_stored(each, place) for each in manifest.exercises())), None)


def _stored(exercise: Exercise, place: Path) -> Path | None:
    """An exercise's notebook in a folder, under its name or under the one that it had before."""
    names = filter(None, (exercise.name, manifest.former_name(exercise)))
    return next((path for name in names if (path := place / f"{name}.ipynb").is_file()), None)


def notebook(exercise: Exercise, named: str = "") -> Path:
    """A learner's notebook.

    Args:
        exercise: that it is of.
        named: what the learner called the exercise; the path of a notebook is taken as it is.

    Returns:
        Where it is, or belongs; neither the file nor its folder need exist. A notebook under the name that it had
        before lessons were numbered anew is found where there is none under today's.
    """
    if named.endswith(".ipynb") and Path(named).is_file():
        return Path(named)
    place = folder() or (checkout() or Path.cwd()) / "exercises"
    return _stored(exercise, place) or place / f"{exercise.name}.ipynb"


def missing(exercise: Exercise) -> str:
    """The message for a learner whose notebook is nowhere."""
    return f"there is no {exercise.name}.ipynb here, nor in exercises/; `course reset {exercise.id}` puts one there"


def solution(exercise: Exercise) -> Path | None:
    """An exercise's solution notebook, which no installation brings: answers can read what is installed.

    Args:
        exercise: that it solves.

    Returns:
        Its path in the checkout; None where there is none.
    """
    path = (checkout() or Path()) / "solutions" / f"{exercise.name}.ipynb"
    return path if path.is_absolute() and path.is_file() else None


def stub(exercise: Exercise) -> dict | None:
    """An exercise's notebook as it is handed out.

    Args:
        exercise: that it is of.

    Returns:
        A notebook, as JSON: made from the solution, or the copy that the package's installation brought; None where
        there is neither.
    """
    if path := solution(exercise):
        return generate.stub(generate.read(path), exercise)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, OSError):
        for file in importlib.metadata.files(DISTRIBUTION) or ():
            if file.parts[-2:] == ("exercises", f"{exercise.name}.ipynb"):
                return generate.read(Path(file.locate()))
    return None


def shown(path: Path) -> str:
    """A path as it is shortest from here.

    Args:
        path: of a file.
    """
    relative = os.path.relpath(path)
    return relative if not relative.startswith(os.pardir) else str(path)
