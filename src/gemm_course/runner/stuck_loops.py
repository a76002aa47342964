"""Which loop of an answer goes round and round and gets nowhere: seen by following the answer's lines for a moment."""

from __future__ import annotations

import ast
import contextlib
import linecache
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import NamedTuple

import torch

# A right walk over tiles stays at one group for as many turns as the group has tiles for a program: fewer than these.
MIN_TURNS = 16
# Calls that give the same for the same arguments. What others give, a load for one, may change.
_STEADY = {"abs", "cdiv", "int", "len", "max", "maximum", "min", "minimum"}
_PLAIN = (bool, bytes, complex, float, str, type(None))  # whose repr is their value
_LEAVE = (ast.Break, ast.Raise, ast.Return, ast.Yield, ast.YieldFrom)


class Loop(NamedTuple):
    """A `while` of an answer, of which its variables can tell that it stands still. (What a `for` goes through, they
    cannot.)

    Attributes:
        line, last: the first line and the last.
        names: of what decides whether it goes on; empty where its condition asks for no variable.
        read: all names in it, but for those of what it calls.
    """

    line: int
    last: int
    names: tuple[str, ...]
    read: tuple[str, ...]


def _loops(tree: ast.Module) -> dict[int, Loop]:
    """The loops of a source, by the line that each begins in."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and (loop := _loop(node)) is not None:
            found.setdefault(node.lineno, loop)
    return found


def _loop(node: ast.While) -> Loop | None:
    """A loop whose variables tell all; None of another."""
    inside = [each for statement in node.body for each in ast.walk(statement)]
    asked = list(ast.walk(node.test))
    leaves = any(isinstance(each, _LEAVE) for each in inside)
    # What leaves a loop may depend on all that happens in it.
    if not _steady([*asked, *inside] if leaves else asked):
        return None
    names = () if leaves else _names(asked)
    return Loop(node.lineno, node.end_lineno or node.lineno, names, _names([*asked, *inside]))


def _steady(nodes: Sequence[ast.AST]) -> bool:
    """Whether what expressions give depends on their variables' values alone."""
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    methods = {id(each) for each in called}
    return all(getattr(each, "attr", getattr(each, "id", "")) in _STEADY for each in called) and all(
        id(node) in methods for node in nodes if isinstance(node, ast.Attribute)
    )


def _names(nodes: Sequence[ast.AST]) -> tuple[str, ...]:
    """The names in expressions, in order, but for those of what is called."""
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = [node for node in nodes if isinstance(node, ast.Name) and id(node) not in called]
    return tuple(dict.fromkeys(node.id for node in sorted(names, key=lambda node: (node.lineno, node.col_offset))))


class _Turns:
    """What happened at a loop's head since the loop was entered, or since it is looked at; a state that nobody can tell
    is None."""

    def __init__(self, state: dict | None):
        self.first, self.count, self.same = state, 0, state is not None

    def note(self, state: dict | None) -> None:
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


def _state(frame: FrameType, loop: Loop) -> dict | None:
    """The values of what a loop depends on; None where not all of it can be seen."""
    held, code = dict(frame.f_locals), frame.f_code
    variables = {*held, *code.co_varnames, *code.co_cellvars, *code.co_freevars}
    found = {}
    with contextlib.suppress(Exception):
        for name in loop.names or loop.read:
            if name in variables:
                found[name] = _value(held[name])
            elif not _fixed(frame.f_globals.get(name)):
                return None
        return found
    return None


def _fixed(value) -> bool:
    """Whether it is something that answers call, or what they call it from."""
    return isinstance(value, (FunctionType, BuiltinFunctionType, ModuleType, type)) or (
        callable(value) and _package(value) == "triton"
    )


def _package(value) -> str:
    return type(value).__module__.partition(".")[0]


def _value(value) -> tuple:
    """What is equal exactly where two values are, whatever their type and size.

    Raises:
        TypeError: of what cannot be compared: an object may change and look the same.
    """
    kind = type(value)
    if kind is int:
        return kind, value
    if kind in _PLAIN or kind is range:
        return kind, repr(value)
    if kind in (list, tuple):
        return kind, *map(_value, value)
    if kind is dict:
        return kind, *((_value(key), _value(each)) for key, each in value.items())
    if kind in (set, frozenset):
        return kind, frozenset(map(_value, value))
    if kind is torch.Tensor and value.device.type == "cpu":  # of a GPU's it would have to wait for the GPU
        flat = value.detach().contiguous().flatten()
        return kind, value.dtype, value.shape, flat.view(torch.uint8).numpy().tobytes()
    if _package(value) == "numpy" and not value.dtype.hasobject:
        return kind, value.dtype, value.shape, value.tobytes()
    if _package(value) == "triton":
        return kind, *_of_triton(value)
    raise TypeError(f"a {kind.__name__} cannot be compared")


def _of_triton(value) -> Iterator[tuple]:
    """A tensor, a descriptor or a constant in Triton's interpreter."""
    handle = getattr(value, "handle", None)
    if hasattr(handle, "data"):
        yield _value(handle.data)
    elif hasattr(handle, "base"):
        yield from (_value(each.data) for each in (handle.base, *handle.shape, *handle.strides))
    else:
        yield _value(value.value)
