"""The only forms that the judge accepts from a process that ran an answer: replies, printable texts, stored results."""

from __future__ import annotations

import contextlib
import math
import os
import re
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta, Struct

from gemm_course.judging.case import Written
from gemm_course.judging.causes import Event, Failure, MaskProblem

MAX_TEXT = 4000
MAX_FILES = 1000  # with folders; a compiler leaves a dozen, and each takes time to remove
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_Extents = list[Annotated[int, Meta(ge=0)]]


class Output(Struct):
    """The form of an output in its memory of so many elements, as `Watch.layout` has it."""

    name: str
    dtype: str
    elements: int
    shape: _Extents
    strides: _Extents
    offset: int


class Layout(Struct):
    """The places of one input and its outputs in memory."""

    outputs: list[Output] = []
    addresses: dict[str, list[int]] = {}  # of each matrix: its own, its buffer's, and the buffer's length in bytes


class Reply(Struct):
    """One message of `worker`: ready or not, the outcome of one input (a value, or an error), or the end.

    The first one, with its layouts, is from before the answer was loaded.
    """

    ready: bool = False
    setup_error: str = ""
    layouts: list[Layout] = []
    case: int | None = None
    value: Any = None
    watched: Any = None
    error: Failure | None = None
    masks: list[MaskProblem] | None = None  # of the answer's loads and stores
    defined: dict[str, str] | None = None  # what the cell has defined, see `worker.definitions`
    done: bool = False

    @property
    def is_result(self) -> bool:
        """True if it has an input's outcome, and that is not an error."""
        return self.case is not None and self.error is None


class _Stored(Struct):
    buffer: torch.Tensor
    counts: torch.Tensor
    writers: torch.Tensor


class _Watched(Struct):
    outputs: list[_Stored] = []
    events: Annotated[list[Event], Meta(max_length=100)] = []


def _convert(data, form):
    try:
        return msgspec.convert(data, form)
    except Exception as error:  # a tensor in the place of something else has no keys, no length, two truths
        raise ValueError(str(error)) from None


def parse_reply(data) -> Reply:
    """A message of the worker's, or ValueError. Its `watched` and `value` are examined later."""
    return _convert(data, Reply)


def parse_watched(data, layout: Layout) -> tuple[dict[str, Written], list[Event]]:
    """The outputs that came back, by name, and the events that the probes saw, from what `Watch.report` makes.

    Raises ValueError, also if an output's memory is not what was laid out for it.
    """
    watched = _convert(data, _Watched)
    found = {}
    for form, each in zip(layout.outputs, watched.outputs, strict=True):
        size = (form.elements,)
        shapes = {tensor.shape for tensor in (each.buffer, each.counts, each.writers)}
        if str(each.buffer.dtype) != f"torch.{form.dtype}" or shapes != {size}:
            raise ValueError("an output of another form than it was given")
        found[form.name] = Written({**msgspec.structs.asdict(form), **msgspec.structs.asdict(each)})
    return found, watched.events


def changed_without_store(written: Written) -> bool:
    """True if an output changed without a kernel's store. Only the interpreter's probes record stores."""
    return bool((~written.missing & (written.counts == 0)).any())


def printable(text: str) -> str:
    """A text without characters that move a terminal's cursor or reverse its letters, and not too long."""
    clean = _UNPRINTABLE.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))
    return clean if len(clean) <= MAX_TEXT else clean[:MAX_TEXT] + "…"


def bytes_in(folder: str) -> float:
    """The size of a folder's content in bytes. It is infinite with more than `MAX_FILES` files, or with a folder that
    is too deep or cannot be read: no compiler makes these.
    """
    total, count, folders = 0, 0, [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > MAX_FILES:
                        return math.inf
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except FileNotFoundError:  # it is gone meanwhile
            continue
        except OSError:
            return math.inf
    return total


def remove(folder: str) -> None:
    """Remove a folder and what is in it, however deep: each folder in it is first moved to its side."""
    moved, folders = 0, [folder]
    while folders:
        where = folders.pop()
        with contextlib.suppress(OSError):
            os.chmod(where, 0o700)
            for entry in list(os.scandir(where)):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)  # without the right to write it cannot be moved
                    moved += 1
                    os.rename(entry.path, f"{folder}.{moved}")
                    folders.append(f"{folder}.{moved}")
                else:
                    os.unlink(entry.path)
            os.rmdir(where)
