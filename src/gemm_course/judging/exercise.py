"""An exercise as the judge needs it. `gemm_course.exercises.manifest` reads it from the TOML files."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

COMPILES = "compiles"  # name of the check that the engine itself makes


class Check(Struct, frozen=True, forbid_unknown_fields=True):
    """One property of an answer."""

    name: str  # in the exercise's examiner
    title: str  # a statement that is true of a right answer
    points: Annotated[int, Meta(ge=1)]


class Exercise(Struct, frozen=True, forbid_unknown_fields=True):
    """One exercise, as its TOML file describes it."""

    id: str  # "03", or "04a" where a lesson has several; they are done in this order
    name: str  # of its notebook, without `.ipynb`, such as "03_tail_masks"
    run: str  # name of the module that runs an answer: it is in the answer's process, and knows no result
    title: Annotated[str, Meta(min_length=1)]
    lesson: Annotated[str, Meta(min_length=1)]  # name of the notebook that it belongs to
    function: Annotated[str, Meta(min_length=1)]  # what the learner writes; no two exercises share it
    todo: Annotated[str, Meta(min_length=1)]  # what an unsolved hole says after "TODO 03: "
    hints: Annotated[tuple[str, ...], Meta(min_length=3)]  # from a nudge to nearly the answer
    checks: Annotated[tuple[Check, ...], Meta(min_length=1)]  # in the order in which they are shown
    # Processor time that the learner's code may take, all inputs together. The slowest right answer with this
    # limit takes 0.3 s (04a); an endless one takes it all, and so the time of whoever grades.
    seconds: float = 4.0
    memory_mb: int = 1024  # that it may allocate
    files_mb: int = 0  # that a compiler may write to a folder of its own; 0: no file
    gpu: bool = False  # whether the same checks run on a GPU, too, where there is one
    exceptions: tuple[tuple[str, str], ...] = ()  # (part of an exception's text, what it means here)
    imports: tuple[str, ...] = ()  # modules that an answer may import, beyond torch, triton and math

    @property
    def points(self) -> int:
        """Points of all checks together."""
        return sum(check.points for check in self.checks)

    @property
    def compiles(self) -> bool:
        """True if the answer is also compiled, for a GPU that need not be there."""
        return any(check.name == COMPILES for check in self.checks)
