"""Finds the loop of an answer that makes no progress by tracing the answer's lines for a moment."""

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
# Calls with the same result for the same arguments. The result of others, such as a load, may change.
_STEADY = {"abs", "cdiv", "int", "len", "max", "maximum", "min", "minimum"}
_PLAIN = (bool, bytes, complex, float, str, type(None))  # whose repr is their value
_LEAVE = (ast.Break, ast.Raise, ast.Return, ast.Yield, ast.YieldFrom)


class Loop(NamedTuple):
    """A `while` of an answer whose variables show whether it makes progress. (Those of a `for` do not.)"""

    line: int
    last: int
    names: tuple[str, ...]  # of the variables in its condition; empty without any, or if something else ends it
    read: tuple[str, ...]  # all names in it, except those of functions that it calls


def _loops(tree: ast.Module) -> dict[int, Loop]:
    """The loops of a source, by the line that each begins in."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and (loop := _loop(node)) is not None:
            found.setdefault(node.lineno, loop)
    return found


def _loop(node: ast.While) -> Loop | None:
    """A loop that depends on its variables alone; None for another."""
    inside = [each for statement in node.body for each in ast.walk(statement)]
    asked = list(ast.walk(node.test))
    leaves = any(isinstance(each, _LEAVE) for each in inside)
    # A statement that leaves the loop may depend on everything in it.
    if not _steady([*asked, *inside] if leaves else asked):
        return None
    names = () if leaves else _names(asked)
    return Loop(node.lineno, node.end_lineno or node.lineno, names, _names([*asked, *inside]))


def _steady(nodes: Sequence[ast.AST]) -> bool:
    """True if the values of expressions depend on their variables alone."""
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    methods = {id(each) for each in called}
    return all(getattr(each, "attr", getattr(each, "id", "")) in _STEADY for each in called) and all(
        id(node) in methods for node in nodes if isinstance(node, ast.Attribute)
    )


def _names(nodes: Sequence[ast.AST]) -> tuple[str, ...]:
    """The names in expressions, in order, except those of functions that are called."""
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = [node for node in nodes if isinstance(node, ast.Name) and id(node) not in called]
    return tuple(dict.fromkeys(node.id for node in sorted(names, key=lambda node: (node.lineno, node.col_offset))))


class _Turns:
    """The states at a loop's head since the loop was entered, or since tracing began. An unknown state is None."""

    def __init__(self, state: dict | None):
        self.first, self.count, self.same = state, 0, state is not None

    def note(self, state: dict | None) -> None:
        self.count += 1
        self.same = self.same and state == self.first


class LoopTracer:
    """Traces the lines of an answer, whose source is at `path`, while it runs."""

    def __init__(self, path: str):
        self._path = path
        self._loops: dict[int, Loop] = {}
        self._assigned: set[str] = set()
        self._turns: dict[tuple[int, int], _Turns] = {}
        self._lines: dict[int, int] = {}  # the last line of each frame

    def frames(self, frame: FrameType | None) -> list[FrameType]:
        """The answer's own frames among a frame and its callers, the innermost first."""
        found = []
        while frame is not None:
            if frame.f_code.co_filename == self._path:
                found.append(frame)
            frame = frame.f_back
        return found

    def start(self, frames: Iterable[FrameType]) -> None:
        """Begin, in frames that are running and in everything that they will call."""
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
        """End, and find the outermost loop that makes no progress, among running frames, the innermost first.

        Its names are those that the answer assigns to, if there are any: one of them should change. None if every loop
        made progress, as far as could be seen.
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
    """The values that a loop depends on; None if not all of them can be seen."""
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
    """True if it is a function, a class or a module, which do not change."""
    return isinstance(value, (FunctionType, BuiltinFunctionType, ModuleType, type)) or (
        callable(value) and _package(value) == "triton"
    )


def _package(value) -> str:
    return type(value).__module__.partition(".")[0]


def _value(value) -> tuple:
    """A key that is equal exactly if two values are, whatever their type. TypeError if they cannot be compared."""
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
    if kind is torch.Tensor and value.device.type == "cpu":  # reading one of a GPU's would wait for the GPU
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
