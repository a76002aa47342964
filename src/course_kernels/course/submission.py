"""Where an answer's source comes from: the cell of a notebook that defines the function."""

from __future__ import annotations

import ast
import json
import linecache
from pathlib import Path

SOLUTION_ID = "answer"  # nbgrader's grade_id of the cell with the hole


def of_function(function, name: str) -> str:
    """The source of the cell, or the file, that a live function was defined in.

    Args:
        function: a Python function, or one that `@triton.jit` wraps.
        name: that the exercise asks for.

    Raises:
        TypeError: it is no function.
        ValueError: its source cannot be had.
    """
    inner = function
    while not hasattr(inner, "__code__") and hasattr(inner, "fn"):
        inner = inner.fn
    if not hasattr(inner, "__code__"):
        raise TypeError(f"check wants the function itself, check({name}), got {type(function).__name__}")
    file = inner.__code__.co_filename
    lines = linecache.getlines(file)
    if not lines:
        raise ValueError(f"the source of {name} cannot be found: define it in a cell and run that cell")
    source = "".join(lines)
    if Path(file).suffix == ".py" and Path(file).is_file():
        return _part(source, inner.__code__.co_firstlineno)
    return source


def _part(source: str, first_line: int) -> str:
    """Of a whole file, the top-level statement at a line, on the line where it was."""
    for node in ast.parse(source).body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        if start <= first_line <= (node.end_lineno or start):
            lines = source.splitlines()[start - 1 : node.end_lineno]
            return "\n" * (start - 1) + "\n".join(lines) + "\n"
    raise ValueError("the function must be defined at the top level of its file")


def of_notebook(path: Path, function: str) -> str:
    """The source of the cell of a stored notebook that holds the answer. Nothing is executed.

    Args:
        path: of the notebook; any version of the format since 4.
        function: that the exercise asks for.

    Returns:
        The cell that the course marked; without its mark, the last one that defines the function.

    Raises:
        ValueError: it is no notebook, or no cell defines the function.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
    return of_cells(code_cells(data, path.name), function, path.name)


def code_cells(data: bytes, name: str) -> list[tuple[str | None, str]]:
    """The code cells of a notebook as it is stored.

    Args:
        data: the file's bytes, from anyone.
        name: of the file, for messages.

    Returns:
        nbgrader's grade_id (None where it has none) and the source of each.

    Raises:
        ValueError: it is no notebook.
    """
    try:
        return [
            (cell.get("metadata", {}).get("nbgrader", {}).get("grade_id"), "".join(cell["source"]))
            for cell in json.loads(data.decode("utf-8-sig"))["cells"]
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read as a notebook: {_what_it_is(data, error)}") from None


def _what_it_is(data: bytes, error: Exception) -> str:
    """What a file is that is no notebook, as far as can be told."""
    if not data.strip():
        return "it is empty"
    if data.lstrip().startswith((b"<!", b"<html")):
        return "it is a web page, not the .ipynb file itself"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON, from line {error.lineno}, column {error.colno} on"
    return f"it is JSON without the cells of a notebook ({type(error).__name__})"


def of_cells(cells: list[tuple[str | None, str]], function: str, name: str) -> str:
    """The source of the cell that holds the answer.

    Args:
        cells: from `code_cells`.
        function: that the exercise asks for.
        name: of the file, for messages.

    Raises:
        ValueError: no cell defines the function.
    """
    marked = [source for grade_id, source in cells if grade_id == SOLUTION_ID]
    defining = [source for _, source in cells if f"def {function}(" in source]
    both = [source for source in marked if f"def {function}(" in source]
    if found := both or defining or marked:
        return found[-1]
    raise ValueError(f"{name} has no cell that defines {function}")
