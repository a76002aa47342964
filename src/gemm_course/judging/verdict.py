"""The verdict on an answer while it is checked, in causes. `Verdict.result` puts it into words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from gemm_course.judging.cause_sentences import Writer, first_of_all
from gemm_course.judging.causes import BELOW, Cause, Causes, Drawn, MaskProblem, Observed, Raised, Words, causes_of
from gemm_course.judging.exercise import COMPILES, Exercise
from gemm_course.judging.results import FAILED, PASSED, TODO, UNCHECKED, Property, Result
from gemm_course.judging.untrusted import printable

_NOT_COMBINED = ("and", "or", "either")  # kinds of `MaskProblem`


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
    suspects: list[Cause] | None = None  # mistakes that lead to every finding; None before the first
    stopped: tuple[Cause, ...] = ()  # what stopped the check as a whole; or a remark on a pass
    checks: dict[str, Held] = field(default_factory=dict)  # by name, in order
    panels: list[dict] = field(default_factory=list)
    printed: str = ""

    def __post_init__(self):
        self.checks = self.checks or {check.name: Held() for check in self.exercise.checks}

    def stop(self, *causes: Causes) -> None:
        """Note the causes that stopped the check as a whole, unless some are already noted."""
        self.stopped = self.stopped or causes_of(causes)

    def suspect(self, leads: Sequence[Causes]) -> None:
        """Note the known mistakes that lead to a finding: only those that lead to all of them remain."""
        found = list(causes_of(leads))
        kinds = {_kind(each) for each in found}
        self.suspects = found if self.suspects is None else [each for each in self.suspects if _kind(each) in kinds]

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
        """The result in words, for an answer with this source.

        If one mistake explains them all, it stands above the checks and begins their messages. Of these only the first
        line is left: the next ones would explain its effects by other mistakes. What is wrong besides shows once it is
        mended.
        """
        lead = self._lead(masks)
        writer, exercise = Writer(source, () if lead else masks), self.exercise
        # Where nothing takes a sum, C is 0, and other causes of that are none.
        dropped = lead and isinstance(lead[0], MaskProblem) and lead[0].kind == "dropped"
        stopped = [each for each in self.stopped if not dropped or isinstance(each, (Raised, Drawn))]
        message = writer.write((*lead, *stopped))[0]
        properties = []
        for check in exercise.checks if self.checks else ():
            held = self.checks[check.name]
            text, shown = writer.write([_as_effect(each) if lead else each for each in held.causes])
            if lead and text:
                if check.name != COMPILES:  # of the compiler's words, the first line says nothing
                    shown = text.split("\n")[0].rstrip(":")
                labels = [each for each in held.causes if isinstance(each, Drawn)]
                text = "\n".join(filter(None, (Writer(source).write(lead)[0], shown, writer.write(labels)[0])))
            follows = BELOW in held.causes
            properties.append(Property(check.name, check.title, check.points, held.status, text, shown, follows))
        flagged = any(isinstance(each, Raised) and each.failure.hostile for each in self.stopped)
        return Result(
            exercise.id, exercise.title, self.status, properties, message, printable(self.printed), self.panels, seed,
            exercise.points, flagged,
        )  # fmt: skip

    def _lead(self, masks: Sequence[MaskProblem]) -> tuple[Cause, ...]:
        if self.status in (PASSED, TODO, UNCHECKED):
            return ()
        found = [*self.stopped, *(each for held in self.checks.values() for each in held.causes)]
        found += [part for each in found if isinstance(each, Words) for part in causes_of(each.because)]
        seen = [each.event.line for each in found if isinstance(each, Observed)]
        # Two masks that are not combined look like a mask that lacks one of them.
        apart = [each for each in masks if each.kind in _NOT_COMBINED]
        apart = [each for each in apart if any(each.first <= line <= each.last for line in seen)]
        suspects = self.suspects or ()
        return first_of_all(masks)[:1] or tuple(apart[:1] or (suspects if len(suspects) == 1 else ()))


def _as_effect(cause: Cause) -> Cause:
    """An access outside of a matrix, without a mistake of its own that would explain it."""
    return msgspec.structs.replace(cause, note="", single=True) if isinstance(cause, Observed) else cause


def _kind(cause: Cause) -> object:
    """Equal for the same mistake in several inputs: a stride differs from one to the next."""
    return cause if isinstance(cause, Words) else type(cause)
