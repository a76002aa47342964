"""The exchange between the judge and an exercise's examiner: drawn inputs, returned results, and findings."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from course_kernels import testing
from gemm_course.judging.causes import Causes, Event


@dataclass
class Case:
    """One drawn input."""

    inputs: dict  # for the process that runs the answer: tensors, numbers, strings, lists, dicts of them
    checks: Sequence[str]  # names of the checks that need this input: they hold only if it was run
    expected: dict = field(default_factory=dict)  # for the judge alone; may also be computed in `examine`
    label: str = ""  # what was drawn, for messages, such as "M = 37, N = 20, K = 50"


@dataclass(frozen=True)
class Finding:
    """Something wrong."""

    # Name of the check that it breaks. "*" if nothing was computed at all: then no check of this input holds, and the
    # cause is shown above them.
    check: str
    cause: Causes  # what is wrong and where, and a likely reason
    panels: Sequence[dict] = ()  # pictures of it, from `panels`
    # Known mistakes that each lead to all findings on this input. One that is alone in doing so for every input is
    # shown once, above all checks.
    leads: Sequence[Causes] = ()


@dataclass
class Ran:
    """The returned results of one input."""

    value: object  # what the exercise's call of the answer returned
    outputs: dict[str, Written]  # every output of its `Watch`, by name
    events: list[Event]  # what the probes saw, but for the next line's; nothing on a GPU
    unread: Sequence[str] = ()  # inputs of floating-point numbers of which no kernel has read anything
    # By matrix: its address in the process that ran the answer, its buffer's, and the buffer's length in bytes.
    addresses: dict[str, list[int]] = field(default_factory=dict)


class Written:
    """An output and its surroundings, after the run, computed from the bytes that came back.

    Attributes:
        name: its name in the exercise.
        values: (rows, columns), its elements.
        missing: bool, like `values`: the canary is still there, so nothing wrote it.
        outside: number of elements around it that changed.
        counts: how often each element was written, int32 like `values`; zeros on a GPU.
        writers: the program (grid axis 0) that wrote each element last; -1 where unknown.
    """

    def __init__(self, data: dict):
        self.name = str(data["name"])
        shape, strides, offset = data["shape"], data["strides"], data["offset"]
        buffer = data["buffer"]

        def view(flat):
            return torch.as_strided(flat, shape, strides, offset)

        bits, pattern = testing.CANARY[buffer.dtype]
        untouched = buffer.view(bits) == pattern
        self._stored = ~untouched | (data["counts"] > 0)
        self.values = view(buffer)
        self.missing = view(untouched).clone()
        around = untouched.clone()
        view(around).fill_(True)
        self.outside = int((~around).sum())
        self.counts, self.writers = view(data["counts"]), view(data["writers"])
        # A store that a probe saw outside was not carried out, and only counted.
        self._around = ~around | (data["counts"] > 0)
        self._first = offset
        view(self._around).fill_(False)

    def around(self, reach: int) -> torch.Tensor:
        """True where its surroundings were written, up to `reach` away: (rows + 2 * reach, columns + 2 * reach).

        Its own place in the middle is False. `reach` is less than `probes.MARGIN`; beyond that there are other rows.
        """
        shape, strides = self.values.shape, self.values.stride()
        start = self.values.storage_offset() - reach * sum(strides)
        return torch.as_strided(self._around, [extent + 2 * reach for extent in shape], strides, start)

    def wrong_pitch(self) -> int | None:
        """The wrong row stride with which the output was stored; None if the stride is right, or unclear."""
        rows, cols = self.values.shape
        places = self._stored.nonzero()[:, 0] - self._first
        if rows < 2 or not len(places):
            return None
        pitch = (int(places[-1]) + 1 - cols) // (rows - 1)
        should = (torch.arange(rows)[:, None] * pitch + torch.arange(cols)).unique()
        return pitch if pitch != self.values.stride(0) and torch.equal(places, should) else None

    def part(self, rows: slice, columns: slice, name: str) -> Written:
        """Some rows and columns, such as a group's, under a new name. `outside` stays that of the whole output."""
        found = copy.copy(self)
        found.name = name
        for each in ("values", "missing", "counts", "writers"):
            setattr(found, each, getattr(self, each)[rows, columns])
        return found


class Examiner(Protocol):
    """The trusted half of an exercise: the module `examine` in its folder."""

    def draw(self, rng: random.Random) -> list[Case]:
        """Draw inputs that distinguish right answers from wrong ones."""

    def examine(self, case: Case, ran: Ran) -> Iterable[Finding]:
        """The findings on one input's results; none if they are right."""


def expect_value(value, kind: type, wanted: str | None = None) -> str | None:
    """A message if a returned value (`Ran.value`) is not of a kind, which learners call `wanted`; else None."""
    if isinstance(value, kind):
        return None
    if value is None:
        return "the function returned None: is there a `return`?"
    name = value["not"] if isinstance(value, dict) and value.keys() == {"not"} else type(value).__name__
    return f"the function returned a {name}, not {wanted or f'a {kind.__name__}'}"
