"""What the judge does not take from a process that ran an answer: shapes, texts, and who wrote a result."""

from __future__ import annotations

import math
import os
import re

from gemm_course.exercises.case import Written

MAX_TEXT = 4000
_FORMS = {"kind": str, "type": str, "text": str, "line": int, "code": str}
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def message(data) -> dict:
    """A message in the form that `worker` gives it.

    Args:
        data: what arrived.

    Raises:
        ValueError: it has another form.
    """
    if not isinstance(data, dict):
        raise ValueError(f"a message is a dict, got a {type(data).__name__}")
    error = data.get("error")
    if error is None:
        return data
    if not isinstance(error, dict) or not all(type(error.get(key)) is form for key, form in _FORMS.items()):
        raise ValueError("an error of another form")
    program = error.get("program")
    if program is not None and not (isinstance(program, list) and program and all(type(p) is int for p in program)):
        raise ValueError("a program that is none")
    loop = error.get("loop")
    if loop is not None and not _is_loop(loop):
        raise ValueError("a loop that is none")
    return {**data, "error": {**error, "program": program, "loop": loop}}


def _is_loop(data) -> bool:
    if not isinstance(data, dict) or type(data.get("line")) is not int or type(data.get("code")) is not str:
        return False
    names = data.get("names")
    return isinstance(names, list) and all(type(name) is str for name in names)


def outputs(watched) -> dict[str, Written]:
    """The outputs that came back, by name.

    Args:
        watched: what `Watch.report` makes.

    Raises:
        ValueError: one has another form, or claims more elements than were sent, so that looking at it would take any
            amount of memory.
    """
    return {str(each["name"]): _written(each) for each in _dicts(watched, "outputs")}


def events(watched) -> list[dict]:
    """What the probes saw.

    Args:
        watched: what `Watch.report` makes.

    Raises:
        ValueError: an event has another form.
    """
    return _dicts(watched, "events")


def _dicts(watched, name: str) -> list[dict]:
    found = watched.get(name, []) if isinstance(watched, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"{name} of another form")
    return found


def _written(data: dict) -> Written:
    shape, strides, size = data["shape"], data["strides"], data["buffer"].numel()
    if not all(type(extent) is int and extent >= 0 for extent in (*shape, *strides)) or math.prod(shape) > size:
        raise ValueError("an output with more elements than its memory")
    if data["counts"].numel() != size or data["writers"].numel() != size:
        raise ValueError("an output that was counted elsewhere")
    return Written(data)


def not_stored(written: Written) -> str | None:
    """Whether an output changed otherwise than by a kernel's store; only the interpreter's probes can say."""
    if not (~written.missing & (written.counts == 0)).any():
        return None
    return f"{written.name} changed, and no kernel's tl.store did it: the exercise asks for a kernel that stores"


def printable(text: str) -> str:
    """A text without what moves a terminal's cursor or turns its letters round, and not too long."""
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
