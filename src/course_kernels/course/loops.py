"""Which loop of an answer goes round and round and gets nowhere: seen by following the answer's lines for a moment."""

from __future__ import annotations

import ast
import contextlib
import linecache
import sys
from collections.abc import Iterable
from types import FrameType
from typing import NamedTuple

# A right walk over tiles stays at one group for as many turns as the group has tiles for a program: fewer than these.
MIN_TURNS = 16
_MAX_REPR = 200
# Calls that give the same for the same arguments. What others give, a load for one, may change.
_STEADY = {"abs", "cdiv", "int", "len", "max", "maximum", "min", "minimum"}


class Loop(NamedTuple):
    """A `while` or `for` of an answer.

    Attributes:
        line, last: the first line and the last.
        names: of what decides whether it goes on; empty where that cannot be told from its condition.
    """

    line: int
    last: int
    names: tuple[str, ...]


def _loops(tree: ast.Module) -> dict[int, Loop]:
    """The loops of a source, by the line that each begins in."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.While, ast.For)):
            names = _names(node) if isinstance(node, ast.While) else ()
            found.setdefault(node.lineno, Loop(node.lineno, node.end_lineno or node.lineno, names))
    return found


def _names(loop: ast.While) -> tuple[str, ...]:
    """What a loop's condition asks for, in order, where nothing else can end the loop."""
    inside = [node for statement in loop.body for node in ast.walk(statement)]
    asked = list(ast.walk(loop.test))
    called = [node.func for node in asked if isinstance(node, ast.Call)]
    steady = all(getattr(each, "attr", getattr(each, "id", "")) in _STEADY for each in called)
    if not steady or any(isinstance(node, (ast.Break, ast.Return)) for node in inside):
        return ()
    names = sorted((node for node in asked if isinstance(node, ast.Name)), key=lambda node: node.col_offset)
    return tuple(dict.fromkeys(node.id for node in names))


class _Turns:
    """What happened at a loop's head since the loop was entered, or since it is looked at."""

    def __init__(self, state: dict[str, str]):
        self.first, self.count, self.same = state, 0, True

    def note(self, state: dict[str, str]) -> None:
        self.count += 1
        self.same = self.same and state == self.first


class Follower:
    """Follows the lines of an answer that is running.

    Args:
        path: of the answer's source.
    """

    def __init__(self, path: str):
        self._path = path
        self._loops: dict[int, Loop] = {}
        self._assigned: set[str] = set()
        self._turns: dict[tuple[int, int], _Turns] = {}
        self._lines: dict[int, int] = {}  # of each frame, where it was last

    def frames(self, frame: FrameType | None) -> list[FrameType]:
        """The answer's own of a frame and those that called it, the innermost first."""
        found = []
        while frame is not None:
            if frame.f_code.co_filename == self._path:
                found.append(frame)
            frame = frame.f_back
        return found

    def follow(self, frames: Iterable[FrameType]) -> None:
        """Begin, in frames that are running and in all that they will call."""
        tree = ast.parse("".join(linecache.getlines(self._path)))
        self._loops = _loops(tree)
        named = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        self._assigned = {node.id for node in named if isinstance(node.ctx, ast.Store)}
        for frame in frames:
            self._lines[id(frame)] = frame.f_lineno
            frame.f_trace = self._line
        sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, _):
        if frame.f_code.co_filename != self._path:
            return None
        self._lines[id(frame)] = 0
        return self._line

    def _line(self, frame: FrameType, event: str, _):
        if event == "line":
            line, before = frame.f_lineno, self._lines.get(id(frame), 0)
            self._lines[id(frame)] = line
            if (loop := self._loops.get(line)) is not None:
                key, state = (id(frame), line), _state(frame, loop)
                if key in self._turns and loop.line <= before <= loop.last:
                    self._turns[key].note(state)
                else:
                    self._turns[key] = _Turns(state)
        return self._line

    def stuck(self, frames: Iterable[FrameType]) -> Loop | None:
        """End, and name the outermost loop that goes round and makes no progress.

        Args:
            frames: that are running, the innermost first.

        Returns:
            The loop, and of its names those that the answer assigns to, if there are any: one of them should change.
            None where every loop gets on, as far as could be seen.
        """
        sys.settrace(None)
        for frame in reversed(list(frames)):
            for loop in sorted(self._loops.values()):
                turns = self._turns.get((id(frame), loop.line))
                within = loop.line <= frame.f_lineno <= loop.last
                if within and turns is not None and turns.same and turns.count >= MIN_TURNS:
                    names = [name for name in loop.names if name in turns.first]
                    return loop._replace(names=tuple([name for name in names if name in self._assigned] or names))
        return None


def _state(frame: FrameType, loop: Loop) -> dict[str, str]:
    """The values that a loop depends on, as text: those of its names, or of all variables."""
    found = {}
    held = dict(frame.f_locals)
    for name in [each for each in loop.names if each in held] or held:
        value = held[name]
        if callable(value):
            continue
        with contextlib.suppress(BaseException):
            handle = getattr(value, "handle", None)  # a Triton value in the interpreter
            found[name] = repr(handle.data if handle is not None else value)[:_MAX_REPR]
    return found
