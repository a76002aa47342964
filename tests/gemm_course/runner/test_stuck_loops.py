"""Which loop is named of an answer that does not end."""

from __future__ import annotations

import sys

import pytest
import torch

from gemm_course.runner.stuck_loops import LoopTracer

STEPS = 500
CASES = {
    "nothing changes": ("while n > 0:\n    tick()", (2, ("n",))),
    "its variable stands still": ("g = seen = 0\nwhile g < n:\n    seen += 1\n    tick()", (3, ("g",))),
    "an inner loop stands still": (
        "g = i = 0\nwhile g < n:\n    while i < n:\n        tick()\n    g += 1", (4, ("i",)),
    ),
    "the inner loop gets on, the outer does not": (
        "g = 0\nwhile g < n:\n    i = 0\n    while i < n:\n        i += 1\n        tick()", (3, ("g",)),
    ),
    "an inner loop that is never entered": (
        "g = i = 0\nwhile g < n:\n    while i > 0:\n        i -= 1\n    tick()", (3, ("g",)),
    ),
    "in a function of its own": ("def part(g):\n    while g < n:\n        tick()\npart(0)", (3, ("g", "n"))),
    "called in a loop": ("def part():\n    tick()\ng = 0\nwhile g < n:\n    part()", (5, ("g",))),
    "a fixed condition": ("while True:\n    tick()", (2, ())),
    "a table that stays the same": (
        "left, g = [0] * 300, 0\nwhile left[g] < n:\n    tick()", (3, ("left", "g")),
    ),
    "a tensor that stays the same": ("while len(rows) > 0:\n    tick()", (2, ("rows",))),
    "on one line": ("while n: tick()", (2, ("n",))),
    "what several names decide": ("a = b = 0\nwhile a + min(b, n) < 9:\n    tick()", (3, ("a", "b"))),
    "around one that ends": ("g = 0\nwhile g < n:\n    for _ in [0] * 20:\n        tick()", (3, ("g",))),
    "around a call that ends": (
        "def part(_):\n    for _ in [0] * 20:\n        tick()\ng = 0\nwhile g < n:\n    part(0)", (6, ("g",)),
    ),
    "a for, which may end": ("for _ in [0] * 10**6:\n    tick()", None),
    "a for without an end": ("for _ in iter(int, 1):\n    tick()", None),
    "asks for an attribute": ("while box.i < 10**9:\n    box.i += 1\n    tick()", None),
    "asks an object": ("while box:\n    tick()", None),
    "asks for an object's entry": ("while box[0] < 10**9:\n    box.i += 1\n    tick()", None),
    "asks a method": ("while box.max() < 10**9:\n    box.i += 1\n    tick()", None),
    "asks for what is not its own": (
        "global tile\ntile = 0\nwhile tile < n:\n    tile -= 1\n    tick()", None,
    ),
    "changes what is not its own": (
        "global tile\ntile = 0\nwhile True:\n    tile += 1\n    tick()", None,
    ),
    "changes an object": ("while True:\n    box.i += 1\n    tick()", None),
    "a call can end it": ("while True:\n    tick()\n    if not peek(n):\n        break", None),
    "an exception can end it": ("while n:\n    tick()\n    if not peek(n):\n        raise ValueError", None),
    "the end of a long list changes": (
        "left = [0] * 300\nwhile left[-1] < 10**9:\n    left[-1] += 1\n    tick()", None,
    ),
    "the middle of a long tensor changes": (
        "while max(rows) < 10**9:\n    rows[600] += 1\n    tick()", None,
    ),
    "runs away": ("g = 0\nwhile g >= 0:\n    g += 1\n    tick()", None),
    "a for that gets on": ("for g in range(10**9):\n    tick()", None),
    "runs away under a fixed condition": ("g = 0\nwhile True:\n    g += 1\n    tick()", None),
    "a break can end it": ("g = 0\nwhile n:\n    g += 1\n    tick()\n    if g > 10**9:\n        break", None),
    "broken out of each time": ("for g in range(10**9):\n    while n:\n        tick()\n        break", None),
    "returned from each time": (
        "def part():\n    while n:\n        tick()\n        return\nfor g in range(10**9):\n    part()", None,
    ),
    "behind one that took its turns and ended": (
        "for _ in [0] * 40:\n    tick()\ng = 0\nwhile g >= 0:\n    g += 1\n    tick()", None,
    ),
    "asks for what a call gives": ("g = 0\nwhile peek(n):\n    g += 1\n    tick()", None),
    "there and back": ("g = 0\nwhile g < n:\n    g = 1 - g\n    tick()", None),
}  # fmt: skip


class Late(Exception):
    pass


class Box:
    """Changes, and looks the same."""

    i = 0

    def __getitem__(self, _):
        return self.i

    def max(self):
        return self.i


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES)
def test_the_outermost_loop_that_stands_still_is_named(tmp_path, body, expected):
    path = tmp_path / "answer.py"
    path.write_text("def answer(n, tick, peek, box, rows):\n    " + body.replace("\n", "\n    ") + "\n")
    made: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), made)
    tracer, found, count = LoopTracer(str(path)), [], 0

    def tick():
        nonlocal count
        count += 1
        frames = tracer.frames(sys._getframe(1))
        if count == 5:  # as the clock does: while it runs
            tracer.start(frames)
        if count == STEPS:
            found.append(tracer.stuck(frames))
            raise Late

    before = sys.gettrace()
    try:
        with pytest.raises(Late):
            made["answer"](3, tick, lambda n: True, Box(), torch.zeros(1200, dtype=torch.bfloat16))
    finally:
        sys.settrace(before)
    (loop,) = found
    assert (loop and (loop.line, loop.names)) == expected


def test_a_few_turns_prove_nothing(tmp_path, monkeypatch):
    """A right walk stays at a group for as long as the group has tiles: with 3 programs and 4 × 8 tiles, 11 turns."""
    monkeypatch.setattr(sys.modules[__name__], "STEPS", 18)
    body, _ = CASES["its variable stands still"]
    test_the_outermost_loop_that_stands_still_is_named(tmp_path, body, None)
