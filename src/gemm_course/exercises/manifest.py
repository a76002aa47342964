"""The manifest: every exercise, its order, title, notebook, function, points, hints, checks and limits.

It is this folder: one TOML file for each exercise, named like its notebook, beside the module that checks it. Nothing
else lists exercises.
"""

from __future__ import annotations

import difflib
import functools
import re
import sys
from pathlib import Path

import msgspec

from gemm_course.judging.exercise import Exercise

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent


def read(path: Path) -> Exercise:
    """One exercise from its TOML file, `NN_name.toml`. Raises ValueError, which names a field that is wrong."""
    found = re.fullmatch(r"(\d\d[a-z]?)_\w+", path.stem)
    if not found:
        raise ValueError(f"{path.name} must be named like 03_tail_masks.toml or 04a_tile_walk.toml")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if given := data.keys() & {"id", "name"}:
        raise ValueError(f"{path.name} has unknown fields {sorted(given)}: the file's name says both")
    try:
        exercise = msgspec.convert({"id": found[1], "name": path.stem, **data}, Exercise)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path.name}: {error}") from None
    if len({check.name for check in exercise.checks}) != len(exercise.checks):
        raise ValueError(f"{path.name}: checks must have different names")
    return exercise


@functools.cache
def exercises() -> tuple[Exercise, ...]:
    """Every exercise, in order."""
    found = tuple(read(path) for path in sorted(FOLDER.glob("*.toml")))
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
