"""What the judge accepts from a process that ran an answer: replies of these forms, printable texts, stored results."""

from __future__ import annotations

import math
import os
import re
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta, Struct

from gemm_course.judging.case import Written

MAX_TEXT = 4000
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_Extents = list[Annotated[int, Meta(ge=0)]]


class StuckLoop(Struct):
    """The loop in which an answer made no progress, as `stuck_loops.Loop` has it."""

    line: int
    code: str
    names: list[str]


class Failure(Struct):
    """Why an answer gave no result for an input, or none at all, as `worker` describes it."""

    kind: Literal["todo", "exception", "missing", "endless"]
    type: str
    text: str
    line: int
    code: str
    program: Annotated[list[int], Meta(min_length=1)] | None = None
    loop: StuckLoop | None = None


class Reply(Struct):
    """One message of `worker`: ready or not, the outcome of one input (a value, or an error), or the end."""

    ready: bool = False
    setup_error: str = ""
    case: int | None = None
    value: Any = None
    watched: Any = None
    error: Failure | None = None
    done: bool = False

    @property
    def is_result(self) -> bool:
        """Whether it has an input's outcome that is no error."""
        return self.case is not None and self.error is None


class _Output(Struct):
    name: str
    buffer: torch.Tensor
    shape: _Extents
    strides: _Extents
    offset: Annotated[int, Meta(ge=0)]
    counts: torch.Tensor
    writers: torch.Tensor


class _Watched(Struct):
    outputs: list[_Output] = []
    events: list[dict] = []


def _convert(data, form):
    try:
        return msgspec.convert(data, form)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def parse_reply(data) -> Reply:
    """A message of the worker's, or ValueError. Its `watched` and `value` are examined later."""
    return _convert(data, Reply)


def parse_watched(data) -> tuple[dict[str, Written], list[dict]]:
    """The outputs that came back, by name, and the events that the probes saw, from what `Watch.report` makes.

    Raises ValueError, also for an output that claims more elements than were sent: they could take any memory.
    """
    watched = _convert(data, _Watched)
    for each in watched.outputs:
        size = each.buffer.numel()
        if math.prod(each.shape) > size:
            raise ValueError("an output with more elements than its memory")
        if each.counts.numel() != size or each.writers.numel() != size:
            raise ValueError("an output that was counted elsewhere")
    return {each.name: Written(msgspec.structs.asdict(each)) for each in watched.outputs}, watched.events


def not_stored(written: Written) -> str | None:
    """Whether an output changed otherwise than by a kernel's store; only the interpreter's probes can tell."""
    if not (~written.missing & (written.counts == 0)).any():
        return None
    return f"{written.name} changed, and no kernel's tl.store did it: the exercise asks for a kernel that stores"


def printable(text: str) -> str:
    """A text without characters that move a terminal's cursor or reverse its letters, and not too long."""
    clean = _UNPRINTABLE.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))
    return clean if len(clean) <= MAX_TEXT else clean[:MAX_TEXT] + "…"


def bytes_in(folder: str) -> int:
    """How much the files of a folder hold, in bytes, as far as they can be seen."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
            except OSError:
                continue
    return total
