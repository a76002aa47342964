"""The places of an exercise's notebook, its stub and its solution: in a checkout, or in a learner's folder."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from pathlib import Path

from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import Exercise
from gemm_course.notebook import stubs

DISTRIBUTION = "grouped-gemm-course"
COPIES = "my_course"  # the folder of a checkout with the learner's working copies: see `copies`


def checkout() -> Path | None:
    """The root of the checkout that this package runs from, or of the one around the working directory."""
    for root in (Path(__file__).resolve().parents[3], Path.cwd(), *Path.cwd().parents):
        if (root / "tools" / "lab.py").is_file() and (root / "notebooks").is_dir():
            return root
    return None


def folder() -> Path | None:
    """The nearest folder that holds a learner's notebooks, or None.

    An `exercises/` around the working directory, the working directory itself (unless it holds solutions), or the
    `exercises/` of the course's checkout. Working copies come before the notebooks that they were made from.
    """
    here = Path.cwd()
    places = [place for folder in (here, *here.parents) for place in _exercises_in(folder)]
    if here.name != "solutions":
        places.append(here)
    if root := checkout():
        places += _exercises_in(root)
    names = [f"{exercise.name}.ipynb" for exercise in manifest.exercises()]
    return next((place for place in places if any((place / name).is_file() for name in names)), None)


def _exercises_in(folder: Path) -> list[Path]:
    return [folder / COPIES / "exercises", folder / "exercises"]


def notebook(exercise: Exercise, named: str = "") -> Path:
    """The path of a learner's notebook. Neither the file nor its folder need exist.

    `named` is what the learner called the exercise; the path of a notebook is taken as it is.
    """
    if named.endswith(".ipynb") and Path(named).is_file():
        return Path(named)
    place = folder() or (checkout() or Path.cwd()) / "exercises"
    return place / f"{exercise.name}.ipynb"


def missing(exercise: Exercise) -> str:
    """The message for a learner whose notebook is nowhere."""
    return f"there is no {exercise.name}.ipynb here, nor in exercises/; `course reset {exercise.id}` puts one there"


def solution(exercise: Exercise) -> Path | None:
    """A solution notebook of the checkout. Installations bring none: answers can read what is installed."""
    path = (checkout() or Path()) / "solutions" / f"{exercise.name}.ipynb"
    return path if path.is_absolute() and path.is_file() else None


def stub(exercise: Exercise) -> dict | None:
    """An exercise's notebook as it is handed out: made from the solution, or the copy that the installation brought."""
    if path := solution(exercise):
        return stubs.stub(stubs.read(path), exercise)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, OSError):
        for file in importlib.metadata.files(DISTRIBUTION) or ():
            if file.parts[-2:] == ("exercises", f"{exercise.name}.ipynb"):
                return stubs.read(Path(file.locate()))
    return None


def shown(path: Path) -> str:
    """The shortest form of a path from here."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith(os.pardir) else str(path)
