"""The verdict on an answer while it is checked, in causes. `Verdict.result` puts it into words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gemm_course.judging.causes import BELOW, Cause, Causes, MaskProblem, Raised, causes_of
from gemm_course.judging.exercise import COMPILES, Exercise
from gemm_course.judging.results import FAILED, Property, Result
from gemm_course.judging.sentences import Writer
from gemm_course.judging.untrusted import printable


@dataclass
class Held:
    """The state of one check, and the reason if it does not hold."""

    status: str = "skip"  # as of `Property`
    causes: tuple[Cause, ...] = ()

    def fail(self, *causes: Causes) -> None:
        """Mark the check as failed, for these causes."""
        self.status, self.causes = "fail", causes_of(causes)


@dataclass
class Verdict:
    """The outcome of checking one answer, in causes."""

    exercise: Exercise
    status: str = FAILED  # as of `Result`
    stopped: tuple[Cause, ...] = ()  # what stopped the check as a whole; or a remark on a pass
    checks: dict[str, Held] = field(default_factory=dict)  # by name, in order
    panels: list[dict] = field(default_factory=list)
    printed: str = ""

    def __post_init__(self):
        self.checks = self.checks or {check.name: Held() for check in self.exercise.checks}

    def stop(self, *causes: Causes) -> None:
        """Note the causes that stopped the check as a whole, unless some are already noted."""
        self.stopped = self.stopped or causes_of(causes)

    def show(self, panels: Sequence[dict]) -> None:
        """Keep the picture of a failure, unless one is already kept."""
        self.panels = self.panels or list(panels)

    @property
    def earns(self) -> bool:
        """True if any check holds."""
        return any(held.status == "pass" for held in self.checks.values())

    @property
    def holds(self) -> bool:
        """True if every check holds."""
        return all(held.status == "pass" for held in self.checks.values())

    def pass_the_others(self, not_run: set[str]) -> None:
        """Pass each undecided check whose inputs all ran, except "compiles", which another process decides."""
        for name, held in self.checks.items():
            if held.status == "skip" and name not in not_run and name != COMPILES:
                held.status = "pass"

    def result(self, source: str, masks: Sequence[MaskProblem] = (), seed: int = 0) -> Result:
        """The result in words, for an answer with this source."""
        writer, exercise = Writer(source, masks), self.exercise
        message = writer.write(self.stopped)[0]
        properties = []
        for check in exercise.checks if self.checks else ():
            held = self.checks[check.name]
            text, shown = writer.write(held.causes)
            follows = BELOW in held.causes
            properties.append(Property(check.name, check.title, check.points, held.status, text, shown, follows))
        flagged = any(isinstance(each, Raised) and each.failure.hostile for each in self.stopped)
        return Result(
            exercise.id, exercise.title, self.status, properties, message, printable(self.printed), self.panels, seed,
            exercise.points, flagged,
        )  # fmt: skip
