"""The manifest: every exercise, its order, title, notebook, function, points, hints, checks and limits.

The manifest is this folder: each exercise has a folder `eNN_name`, named after its notebook. `exercise.toml` describes
it, `examine.py` draws inputs and judges results, and `run.py` runs an answer in its own process. Nothing else lists
exercises.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gemm_course.judging.exercise import Exercise

if TYPE_CHECKING:
    from gemm_course.judging.case import Examiner  # it imports torch, which takes a second

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent


def read(path: Path) -> Exercise:
    """One exercise from its file, `eNN_name/exercise.toml`. Raises ValueError, which names a field that is wrong."""
    folder = path.parent.name
    match = re.fullmatch(r"e((\d\d[a-z]?)_\w+)", folder)
    if not match:
        raise ValueError(f"{folder} must be named like e03_tail_masks or e04a_tile_walk")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if given := data.keys() & {"id", "name", "run"}:
        raise ValueError(f"{folder} has unknown fields {sorted(given)}: the folder's name gives them")
    named = {"id": match[2], "name": match[1], "run": f"{__package__}.{folder}.run"}
    try:
        exercise = msgspec.convert({**named, **data}, Exercise)
    except msgspec.ValidationError as error:
        raise ValueError(f"{folder}: {error}") from None
    if len({check.name for check in exercise.checks}) != len(exercise.checks):
        raise ValueError(f"{folder}: checks must have different names")
    return exercise


def examiner(exercise: Exercise) -> Examiner:
    """The module that draws an exercise's inputs and judges results. For trusted processes alone."""
    return importlib.import_module(f"{__package__}.e{exercise.name}.examine")


@functools.cache
def exercises() -> tuple[Exercise, ...]:
    """Every exercise, in order."""
    found = tuple(read(path) for path in sorted(FOLDER.glob("e*/exercise.toml")))
    for attribute in ("id", "function"):
        values = [getattr(exercise, attribute) for exercise in found]
        if double := sorted({value for value in values if values.count(value) > 1}):
            raise ValueError(f"several exercises have the {attribute} {', '.join(double)}")
    return found


def find(name: str) -> tuple[Exercise, ...]:
    """The exercises that a name means, at least one, in order. Raises ValueError for none, naming the nearest or all.

    A name is an id ("04a"), a lesson's number ("04" or "4": all of its exercises), a notebook's name or its path, or
    the function to write.
    """
    stem = Path(name).name.removesuffix(".ipynb")
    number = stem.zfill(2) if stem.isdigit() else stem
    if found := tuple(e for e in exercises() if stem in (e.name, e.function, e.id) or number in (e.id, e.id[:2])):
        return found
    known = {known: e.name for e in exercises() for known in (e.id, e.name, e.function, e.name.partition("_")[2])}
    near = dict.fromkeys(known[each] for each in difflib.get_close_matches(stem, known, n=3, cutoff=0.5))
    if near and not re.fullmatch(r"\d+[a-z]?", stem):
        raise ValueError(f"no exercise {name!r}; did you mean {' or '.join(near)}?")
    raise ValueError(f"no exercise {name!r}; there are {', '.join(e.name for e in exercises())}")
