"""The manifest: every exercise, its order, title, notebook, function, points, hints, checks and limits.

It is the folder `exercises/`: one TOML file per exercise, named like its notebook, beside the module that checks it.
Nothing else lists exercises.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
MIN_HINTS = 3
_FIELDS = {"title", "lesson", "function", "todo", "seconds", "memory_mb", "gpu", "imports", "hints", "checks"}


@dataclass(frozen=True)
class Check:
    """One property of an answer.

    Attributes:
        name: what the exercise's module calls it.
        title: what the learner reads, a statement that is true of a right answer.
        points: earned when it holds.
    """

    name: str
    title: str
    points: int


@dataclass(frozen=True)
class Exercise:
    """One exercise, as its TOML file describes it.

    Attributes:
        id: "02", or "03a" where a lesson has several; they are done in this order.
        name: of its notebook, without `.ipynb`, such as "03_tail_masks".
        title: one line.
        lesson: name of the notebook that it belongs to.
        function: what the learner writes; no two exercises share it.
        todo: what an unsolved hole says after "TODO 03: ".
        hints: at least three, from a nudge to nearly the answer.
        checks: the properties, in the order in which they are shown. A check named "compiles" is the engine's own.
        seconds: time limit of the learner's code, all inputs together.
        memory_mb: memory that it may allocate.
        gpu: whether the same checks run on a GPU, too, where there is one.
        imports: modules that an answer may import, beyond torch, triton and math.
    """

    id: str
    name: str
    title: str
    lesson: str
    function: str
    todo: str
    hints: tuple[str, ...]
    checks: tuple[Check, ...]
    seconds: float = 6.0
    memory_mb: int = 1024
    gpu: bool = False
    imports: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """Points of all checks together."""
        return sum(check.points for check in self.checks)

    @property
    def compiles(self) -> bool:
        """Whether the answer is also compiled, for a GPU that need not be there."""
        return any(check.name == "compiles" for check in self.checks)

    def module(self) -> ModuleType:
        """The module that draws inputs, runs an answer on them and examines what came out."""
        return importlib.import_module(f"gemm_course.exercises.e{self.name}")


def read(path: Path) -> Exercise:
    """One exercise from its TOML file.

    Args:
        path: `NN_name.toml`.

    Raises:
        ValueError: a field is missing, unknown or empty, and which.
    """
    found = re.fullmatch(r"(\d\d[a-z]?)_\w+", path.stem)
    if not found:
        raise ValueError(f"{path.name} must be named like 03_tail_masks.toml or 04a_tile_walk.toml")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if unknown := sorted(data.keys() - _FIELDS):
        raise ValueError(f"{path.name} has unknown fields {unknown}; there are {sorted(_FIELDS)}")
    required = {"title", "lesson", "function", "todo", "hints", "checks"}
    if missing := sorted(name for name in required if not data.get(name)):
        raise ValueError(f"{path.name} must have {missing}")
    checks = tuple(Check(**check) for check in data.pop("checks"))
    hints = tuple(hint.strip() for hint in data.pop("hints"))
    if len(hints) < MIN_HINTS:
        raise ValueError(f"{path.name} must have at least {MIN_HINTS} hints, got {len(hints)}")
    if len({check.name for check in checks}) != len(checks) or any(check.points < 1 for check in checks):
        raise ValueError(f"{path.name}: checks must have different names and at least 1 point each")
    imports = tuple(data.pop("imports", ()))
    return Exercise(found[1], path.stem, hints=hints, checks=checks, imports=imports, **data)


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
    """The exercises that a name means.

    Args:
        name: an id ("03a"), a lesson's number ("03" or "3": all of its exercises), a notebook's name or its path, or
            the function to write.

    Returns:
        At least one exercise, in order.

    Raises:
        ValueError: there is none; the message has the nearest names.
    """
    stem = Path(name).name.removesuffix(".ipynb")
    number = stem.zfill(2) if stem.isdigit() else stem
    found = tuple(e for e in exercises() if stem in (e.name, e.function, e.id) or number in (e.id, e.id[:2]))
    if found:
        return found
    known = {known: e.name for e in exercises() for known in (e.id, e.name, e.function, e.name.partition("_")[2])}
    near = dict.fromkeys(known[each] for each in difflib.get_close_matches(stem, known, n=3, cutoff=0.5))
    if near:
        raise ValueError(f"no exercise {name!r}; did you mean {' or '.join(near)}?")
    raise ValueError(f"no exercise {name!r}; there are {', '.join(e.name for e in exercises())}")
