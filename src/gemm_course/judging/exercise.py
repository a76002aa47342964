"""What the judge has to know about an exercise. `gemm_course.exercises.manifest` reads it from the TOML files."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Annotated

from msgspec import Meta, Struct

COMPILES = "compiles"  # name of the check that the engine itself makes


class Check(Struct, frozen=True, forbid_unknown_fields=True):
    """One property of an answer: its name in the exercise's module, its title, a statement that is true of a right
    answer, and the points that it is worth.
    """

    name: str
    title: str
    points: Annotated[int, Meta(ge=1)]


class Exercise(Struct, frozen=True, forbid_unknown_fields=True):
    """One exercise, as its TOML file describes it.

    Attributes:
        id: "03", or "04a" where a lesson has several; they are done in this order.
        name: of its notebook, without `.ipynb`, such as "03_tail_masks".
        title: one line.
        lesson: name of the notebook that it belongs to.
        function: what the learner writes; no two exercises share it.
        todo: what an unsolved hole says after "TODO 03: ".
        hints: at least three, from a nudge to nearly the answer.
        checks: the properties, in the order in which they are shown. The engine itself makes the one named "compiles".
        seconds: time limit of the learner's code, all inputs together.
        memory_mb: memory that it may allocate.
        gpu: whether the same checks run on a GPU, too, where there is one.
        imports: modules that an answer may import, beyond torch, triton and math.
    """

    id: str
    name: str
    title: Annotated[str, Meta(min_length=1)]
    lesson: Annotated[str, Meta(min_length=1)]
    function: Annotated[str, Meta(min_length=1)]
    todo: Annotated[str, Meta(min_length=1)]
    hints: Annotated[tuple[str, ...], Meta(min_length=3)]
    checks: Annotated[tuple[Check, ...], Meta(min_length=1)]
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
        return any(check.name == COMPILES for check in self.checks)

    @property
    def module_name(self) -> str:
        """Name of the module that draws inputs, runs an answer on them and examines the results."""
        return f"gemm_course.exercises.e{self.name}"

    def module(self) -> ModuleType:
        """That module."""
        return importlib.import_module(self.module_name)
