"""Where an exercise's notebook, its stub and its solution lie: in a checkout, or where the learner has put them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from pathlib import Path

from course_kernels.course import generate
from course_kernels.course.lab import checkout
from course_kernels.course.manifest import Exercise

DISTRIBUTION = "grouped-gemm-course"


def folders() -> list[Path]:
    """Where exercises may lie, the likeliest first.

    Returns:
        Folders that exist: the nearest `exercises/` around the working directory, the working directory itself (unless
        it holds solutions), the `exercises/` of the course's checkout.
    """
    here, found = Path.cwd(), []
    found += [folder / "exercises" for folder in (here, *here.parents)]
    if here.name != "solutions":
        found.append(here)
    if root := checkout():
        found.append(root / "exercises")
    return list(dict.fromkeys(folder for folder in found if folder.is_dir()))


def notebook(exercise: Exercise, named: str = "") -> Path | None:
    """A learner's notebook.

    Args:
        exercise: that it is of.
        named: what the learner called the exercise; the path of a notebook is taken as it is.

    Returns:
        Its path; None where there is none.
    """
    if named.endswith(".ipynb") and Path(named).is_file():
        return Path(named)
    found = (folder / f"{exercise.name}.ipynb" for folder in folders())
    return next((path for path in found if path.is_file()), None)


def missing(exercise: Exercise) -> str:
    """What to tell a learner whose notebook is nowhere."""
    return f"there is no {exercise.name}.ipynb here, nor in exercises/; `course reset {exercise.id}` puts one there"


def home(exercise: Exercise) -> Path:
    """Where a learner's notebook is, or belongs.

    Args:
        exercise: that it is of.

    Returns:
        A path; neither the file nor its folder need exist.
    """
    here = Path.cwd()
    known = [folder for folder in folders() if folder.name == "exercises"]
    return notebook(exercise) or next(iter(known), here / "exercises") / f"{exercise.name}.ipynb"


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
