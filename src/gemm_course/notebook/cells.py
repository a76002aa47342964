"""The source of an answer: the cell of a notebook that defines the function."""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MAX_PARSED = 100 << 10  # characters: Python's parser takes a thousand times that in memory
SOLUTION_ID = "answer"  # nbgrader's grade_id of the cell with the hole
_HOLE = re.compile(r"^[ \t]*raise NotImplementedError\b", re.MULTILINE)  # ours, and nbgrader's
# Magics of timing, as they are stored and as IPython runs them: they time the lines of a cell, or a call of the answer.
_TIMING = re.compile(
    r"^(?:%%time(?:it)?\b|(?:\w+[ \t]*=[ \t]*)?(?:%time(?:it)?\b|get_ipython\(\)\.run_line_magic\(.time(?:it)?\b)).*",
    re.MULTILINE,
)
_SHOWS = {"check", "display", "hint", "print", "solution"}  # what a learner calls beside the function to look at it


class Version(NamedTuple):
    """A cell that may be the answer."""

    source: str  # as it is checked
    cell: int  # its number among all of the notebook's cells, from 1
    hole: bool  # whether something in it still has to be written


class Cell(NamedTuple):
    """A code cell of a stored notebook: nbgrader's id, its source, and its number among cells of any kind, from 1."""

    grade_id: str | None
    source: str
    number: int


def of_function(function, name: str, ran: Sequence[str] = ()) -> str:
    """The source of the cell or file that defines a live function, also of one in `@triton.jit` or `@cute.jit`.

    `ran`: the cells that have run, the latest last. `%%time` keeps no source of the functions in its cell.
    """
    inner = inspect.unwrap(function)  # cute.jit returns a function of its own, as functools.wraps does
    while not hasattr(inner, "__code__") and hasattr(inner, "fn"):
        inner = inspect.unwrap(inner.fn)
    if not hasattr(inner, "__code__"):
        raise TypeError(f"check wants the function itself, check({name}), got {type(function).__name__}")
    file = inner.__code__.co_filename
    lines = linecache.getlines(file)
    timed = [cell for cell in ran if _TIMING.match(cell.lstrip()) and defines(cell, name)]
    if not lines and timed:
        return without_shows(timed[-1])
    if not lines:
        raise ValueError(f"the source of {name} cannot be found: define it in a cell and run that cell")
    source = "".join(lines)
    if Path(file).suffix == ".py" and Path(file).is_file():
        return _part(source, inner.__code__.co_firstlineno)
    return without_shows(source)


def _part(source: str, first_line: int) -> str:
    """The top-level statement at `first_line`, padded so that it keeps its line number."""
    for node in ast.parse(source).body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        if start <= first_line <= (node.end_lineno or start):
            lines = source.splitlines()[start - 1 : node.end_lineno]
            return "\n" * (start - 1) + "\n".join(lines) + "\n"
    raise ValueError("the function must be defined at the top level of its file")


def without_shows(source: str) -> str:
    """A cell without magics of timing and top-level calls of `check`, `print` and the like, which look at the answer.

    They use variables of other cells, and an answer's cell runs alone. The other lines keep their numbers. Text that
    is not Python, or too long for an answer, stays as it is.
    """
    if len(source) > MAX_PARSED:
        return source
    source = _TIMING.sub("", source)
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    lines = source.splitlines(keepends=True)
    if len(lines) != source.count("\n") + (not source.endswith("\n")):
        return source  # a form feed ends no line of Python's
    spans = [range(node.lineno - 1, node.end_lineno or node.lineno) for node in body]
    taken = Counter(line for span in spans for line in span)
    shows = _SHOWS - {node.name for node in body if isinstance(node, ast.FunctionDef)}
    for node, span in zip(body, spans):
        call = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
        looks = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in shows
        if looks and all(taken[line] == 1 for line in span):
            lines[span.start : span.stop] = ["\n"] * len(span)
    return "".join(lines)


def defines(source: str, function: str) -> bool:
    """Return whether a cell seems to define a function. The cell may be invalid Python."""
    return re.search(rf"^def\s+{function}\s*\(", source, re.MULTILINE) is not None


def of_notebook(path: Path, function: str) -> str:
    """The source of the cell of a stored notebook that holds the answer, without executing it; ValueError if none does.

    It is the last cell that defines the function, as the notebook's own check finds it once all cells have run; one
    with a hole in it only if there is no other. If no cell defines it, it is the cell that the course marked.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
    return versions(code_cells(data, path.name), function, path.name)[0].source


def code_cells(data: bytes, name: str) -> list[Cell]:
    """The code cells of a notebook, from bytes that anyone wrote; ValueError, with the file's name, if it is none."""
    try:
        return [
            Cell(_grade_id(cell), "".join(cell["source"]), number)
            for number, cell in enumerate(json.loads(data.decode("utf-8-sig"))["cells"], 1)
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{name} cannot be read as a notebook: {_describe(data, error)}") from None


def _grade_id(cell: dict) -> str | None:
    """nbgrader's id of a cell; None if it has none, or something else in its place."""
    found = cell
    for key in ("metadata", "nbgrader", "grade_id"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def _describe(data: bytes, error: Exception) -> str:
    """Describe a file that is no notebook, as far as its bytes show it."""
    if not data.strip():
        return "it is empty"
    if data.lstrip().startswith((b"<!", b"<html")):
        return "it is a web page, not the .ipynb file itself"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON, from line {error.lineno}, column {error.colno} on"
    if isinstance(error, RecursionError):
        return "its lists are nested too deeply"
    if isinstance(error, MemoryError):
        return "it takes too much memory"
    if isinstance(error, ValueError):  # of Python's own: it limits the digits of a number
        return "a number in it has too many digits"
    return "it is JSON without a notebook's list of cells, each with a type and a source"


def versions(cells: list[Cell], function: str, name: str) -> list[Version]:
    """The cells that may be the answer, at least one (else ValueError): all that define the function, no text twice.

    The last one is first, then the one that the course marked, then the others from the end; those with a hole in them
    come after all others. If no cell defines it, the marked one. The file's name is for messages.
    """
    marked = [each for each in reversed(cells) if each.grade_id == SOLUTION_ID]
    defining = [each for each in reversed(cells) if defines(each.source, function)]
    if not (defining or marked):
        raise ValueError(f"{name} has no cell that defines {function}")
    whole = [each for each in defining if not _HOLE.search(each.source)]
    ordered = [*whole[:1], *(each for each in whole[1:] if each in marked), *whole, *defining] or marked[:1]
    found: dict[str, Version] = {}
    for each in ordered:
        source = without_shows(each.source)
        found.setdefault(source, Version(source, each.number, bool(_HOLE.search(source))))
    return list(found.values())
