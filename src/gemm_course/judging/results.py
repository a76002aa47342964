"""The result of a check, and its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

import msgspec

PASSED, FAILED, TODO, UNCHECKED = "passed", "failed", "todo", "unchecked"
NOT_ON_GPU = "this did not run on the GPU (`course doctor` says more), so the interpreter's word counts alone"
ONLY_ON_GPU = "right in the interpreter, but on the GPU: "
# The message of a property that fails for the same reason as another one, which gives it.
REASON_ABOVE, REASON_BELOW = "wrong for the reason above", "wrong for the reason below"
_MARKS = {"pass": "✓", "fail": "✗", "skip": "–"}
_WIDTH = 96


@dataclass
class Property:
    """One check's outcome; name, title and points as in the manifest."""

    name: str
    title: str
    points: int
    status: str  # "pass", "fail", or "skip" if the code did not get that far, or this machine cannot check it
    message: str = ""  # what is wrong and where; empty after a pass
    shown: str = ""  # the part of the message that no earlier one has; all of it if empty
    follows: bool = False  # whether the reason is with a later property


@dataclass(repr=False)
class Result:
    """The outcome of checking one answer."""

    exercise: str  # its id
    title: str
    # `PASSED`, `FAILED`, `TODO`, or `UNCHECKED` if this machine, not the answer, kept a property from being checked:
    # on another, or repaired, the answer may earn more.
    status: str
    properties: list[Property] = field(default_factory=list)  # in the checks' order; none if unsolved
    # The reason that stopped the check as a whole (a crash, an endless loop, a hole); `NOT_ON_GPU` and a reason for a
    # pass without a GPU's verdict; empty otherwise.
    message: str = ""
    printed: str = ""  # the beginning of what the answer printed
    panels: list[dict] = field(default_factory=list)  # the picture of the first failure, for `picture.tiles`
    seed: int = 0  # gives the same inputs again
    max_points: int = 0
    flagged: bool = False  # whether it was refused because it reaches for the interpreter's insides

    @property
    def passed(self) -> bool:
        """True if every property holds."""
        return self.status == PASSED

    @property
    def points(self) -> int:
        """Points earned."""
        return sum(each.points for each in self.properties if each.status == "pass")

    @property
    def first_failure(self) -> Property | None:
        """The first property that fails with a reason of its own, or else the first that fails; None if none does."""
        failed = [each for each in self.properties if each.status == "fail"]
        return min(failed, key=lambda each: not each.message or each.follows, default=None)

    def __repr__(self) -> str:
        return f"<exercise {self.exercise}: {self.status}, {self.points} of {self.max_points} points>"

    def _ipython_display_(self) -> None:
        """Show nothing at the end of a cell: `check` has printed the result."""

    def as_dict(self) -> dict:
        """The result as a dict for JSON. `from_dict` reverses this."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict) -> Result:
        """A result from `as_dict`. Raises msgspec.ValidationError if the data has another form."""
        return msgspec.convert(data, cls)

    def text(self) -> str:
        """The text for a terminal or a notebook. After a pass it does not depend on the drawn inputs."""
        return "\n".join(text for _, text in self.lines())

    def lines(self) -> Iterator[tuple[str, str]]:
        """The lines of `text`, each with its kind: "title", "message", a property's status, "reason", "total" or
        "printed"; "" for an empty one.
        """
        yield "title", f"Exercise {self.exercise} · {self.title}"
        for line in self.message.split("\n") if self.message else ():
            yield "message", line
        if self.status == TODO:
            return
        if self.message:
            yield "", ""
        shown = self.properties if any(each.status != "skip" for each in self.properties) else []
        for each in shown:
            yield each.status, f"  {_MARKS[each.status]} {each.title}"
            for line in (each.shown or each.message).splitlines():
                yield "reason", f"      {line}"
        if self.properties and not shown:
            yield "skip", f"  {_MARKS['skip']} so none of its {len(self.properties)} properties could be checked"
        points = f"{self.points} of {self.max_points} points"
        if self.passed:
            yield "total", f"pass: {points}"
        elif self.status == UNCHECKED:
            yield "total", f"not checked: {points} so far"
        else:
            yield "total", f"not yet: {points}"
        if self.printed:
            yield "", ""
            yield "printed", "your code printed:"
            for line in self.printed.splitlines():
                yield "printed", f"  | {line[:_WIDTH]}"


def exit_code(results: Iterable[Result | None]) -> int:
    """0 if all answers pass, 3 if one could not be checked here, else 1. None is an answer that was missing."""
    statuses = {None if each is None else each.status for each in results}
    if UNCHECKED in statuses:
        return 3
    return 0 if statuses <= {PASSED} else 1
