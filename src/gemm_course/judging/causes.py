"""Reasons for failed checks, as facts. `cause_sentences` alone puts them into words.

Lines are those of the learner's cell, from 1; 0 is unknown. Places are (row, column).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

if TYPE_CHECKING:
    from gemm_course.judging.exercise import Exercise

Place: TypeAlias = tuple[int, int]

# ---- seen in the answer's process


class Event(Struct, frozen=True):
    """An observation of a probe. Raises ValueError if an access outside of a matrix lacks its place."""

    # "load", "store": an access outside; "undefined": a load whose mask leaves out elements and gives them no value;
    # "atomic": an atomic update; "pointer": an access without a descriptor; "beyond": a descriptor's load of zeros
    # alone; "changed": Python code has put numbers where a kernel reads or stored; "unread": inputs (`what`) of which
    # no kernel has read anything; "sync": a host sync; "devices", "host", "calls": see `host_syncs`.
    kind: str
    matrix: str | None = None  # None: the address belongs to no matrix
    line: int = 0
    side: Literal["rows", "columns", "gap"] | None = None  # the extent that was left; "gap": between two elements
    place: Place | None = None  # the first one outside
    far: Place = (0, 0)  # the farthest row and column
    shape: tuple[int, ...] | None = None  # of the matrix
    program: tuple[int, ...] = (0,)
    count: int = 0
    pitch: Place | None = None  # elements between a block's rows, and between the matrix's, if these differ
    what: str = ""  # the call that waits

    def __post_init__(self):
        outside = self.kind in ("load", "store", "beyond") and self.matrix is not None
        if outside and (self.side is None or self.place is None or self.shape is None or len(self.shape) < 2):
            raise ValueError("an access outside of a matrix without its place")
        if not self.program:
            raise ValueError("an event of no program")

    @property
    def of_table(self) -> bool:
        """Whether entries of a one-dimensional matrix were left: the probes have it as one row."""
        return self.side == "columns" and self.shape is not None and self.shape[0] == 1

    @property
    def wrong_stride(self) -> WrongStride | None:
        """The stride of the pointers, if it is not the matrix's."""
        return WrongStride(self.matrix, *self.pitch) if self.pitch else None


class MaskProblem(Struct, frozen=True):
    """A mistake in the mask of a load or store, as the source shows it: see `masks.problems`.

    Four are no masks': "brackets" of any comparison (`code` is the sign between the comparisons), "index" into a
    pointer and "step" of a loop (`code` is the name), and "dropped", a call whose result nothing takes.
    """

    first: int  # lines of the access
    last: int
    line: int  # of the part that is wrong
    kind: Literal[
        "and", "or", "either", "flat", "flat part", "turned", "foreign", "brackets", "index", "step", "dropped"
    ]
    code: str = ""  # the part
    other: str = ""  # the pointers' part along the same dimension, of "turned" and "foreign"
    side: Literal["rows"] | None = None  # the extent that it fails to mask; None: any


class StuckLoop(Struct):
    """The loop in which an answer made no progress, as `stuck_loops.Loop` has it."""

    line: int
    code: str
    names: list[str]


class Failure(Struct):
    """The reason why an answer gave no result for an input, or none at all, as `worker` describes it."""

    kind: Literal["todo", "exception", "missing", "endless", "refused"]
    type: str
    text: str
    line: int
    code: str
    program: Annotated[list[int], Meta(min_length=1)] | None = None
    loop: StuckLoop | None = None
    waited_s: float = 0.0  # of an endless answer that mostly waits: the time until it was stopped
    hostile: bool = False  # whether what is refused reaches for the interpreter's insides


# ---- wrong results


class Cause(Struct, frozen=True):
    """A reason for a failed check: one of the classes below. `cause_sentences.lines_of` has words for each."""


class Words(Cause):
    """An exercise's own explanation."""

    text: str
    line: int = 0
    because: Causes = ""  # the mistake behind it, which is explained once


class Observed(Cause):
    """An event, and perhaps the exercise's words at the end of its sentence."""

    event: Event
    note: str = ""
    single: bool = False  # an access of one element has no mask, and none with `<=`

    def __post_init__(self):
        if self.event.kind not in ("load", "store", "undefined", "atomic", "changed", "sync"):
            raise ValueError("an event that only its exercise can explain")


class WrongStride(Cause):
    """Pointers whose row stride differs from the stride of the matrix."""

    matrix: str | None
    pointers: int
    stride: int


class UnwrittenTile(Cause):
    """The first tile of a matrix that was not written, or only in part."""

    matrix: str
    tile: Place
    whole: bool  # whether nothing of it was written
    more: int  # tiles like it


class WrongTile(Cause):
    """The first wrong tile of a matrix, and its first wrong element."""

    matrix: str
    tile: Place
    place: Place
    got: float
    want: float
    program: int  # that wrote it; -1: unknown
    wrong: int  # tiles
    tiles: int


class ChangedAround(Cause):
    """Elements around a matrix that something wrote; no probe saw it."""

    matrix: str
    count: int
    note: str = ""  # as in `Observed`


class NotStored(Cause):
    """An output that changed without a store by a kernel."""

    matrix: str


class MadeOnCPU(Cause):
    """A tensor that was made without a device; `device` is the source of the right one."""

    device: str


class ReasonAbove(Cause):
    """An earlier check has the reason."""


class ReasonBelow(Cause):
    """A later check has the reason."""


ABOVE, BELOW = ReasonAbove(), ReasonBelow()


class Drawn(Cause):
    """The input that shows it."""

    label: str


# ---- no result


class Raised(Cause):
    """An exception, an endless loop, or what the static check refuses."""

    failure: Failure
    exercise: Exercise


class Ended(Cause):
    """A process that ended without a result."""

    how: str  # see `Outcome.how_it_ended`
    status: int  # exit status, as `subprocess` gives it
    seconds: float  # its limits
    memory_mb: int


class Malformed(Cause):
    """A reply that could not be examined."""

    error: str


class NotCompiled(Cause):
    """The compiler refuses the answer, or takes too long or too much."""

    how: str  # see `Outcome.how_it_ended`
    text: str  # the compiler's own
    source: str
    seconds: float  # its limits
    memory_mb: int


class CompilesToOther(Cause):
    """A name that has another definition in the compiled answer than in the answer that ran."""

    name: str


class OnlyOnGPU(Cause):
    """Wrong on the GPU alone."""

    causes: tuple[Cause, ...]


class NotOnGPU(Cause):
    """The machine, not the answer, gave no result on the GPU."""

    problem: str


class CannotCheck(Cause):
    """A part that this machine lacks; `on_gpu`: also for a check on the GPU."""

    problem: str
    on_gpu: str = ""


class NotStarted(Cause):
    """No process ran the answer; the text is the judge's own."""

    text: str


class Hole(Cause):
    """The answer still has its hole: the learner has not written it."""

    text: str


# Examiners give this: a string is the exercise's own words; an empty one, or None, is left out.
Causes: TypeAlias = Cause | str | Sequence["Causes"] | None


def causes_of(given: Causes) -> tuple[Cause, ...]:
    """The causes that an examiner gives, as a flat tuple in their order."""
    if given is None or given == "":
        return ()
    if isinstance(given, str):
        return (Words(given),)
    if isinstance(given, (tuple, list)):
        return tuple(cause for each in given for cause in causes_of(each))
    return (given,)
