"""Shows the source of a kernel or function in a lesson: whole, by excerpt, folded; and two texts in columns."""

from __future__ import annotations

import html
import inspect
import re
import textwrap
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

from course_kernels.provenance import ROOT


def show(function: Callable, first: int | str | None = None, last: int | str | None = None) -> None:
    """Print the source of a Triton kernel, a Python function or a class, or a part of it.

    Args:
        function: may be compiled, interpreted or autotuned; of a module or a notebook's cell.
        first: line number from 1, the first decorator's, or a text: the first line that contains it. None is the top.
        last: the last line to show; a text is looked for from ``first`` on. None is the end.

    Raises:
        TypeError: ``function`` has no Python source.
        ValueError: no such line, or ``last`` comes before ``first``.
    """
    function = _unwrap(function)
    lines = _source_of(function).splitlines()
    start = 1 if first is None else _find("first", first, lines, 1)
    end = len(lines) if last is None else _find("last", last, lines, start)
    if end < start:
        raise ValueError(f"last must not come before first, got lines {start} to {end} of {function.__name__}")
    shown = lines[start - 1 : end]
    if start > 1:
        shown.insert(0, _indent_of(shown) + "...")
    if end < len(lines):
        shown.append(_indent_of(shown[::-1]) + "...")
    if function.__module__ != "__main__":
        print(f"# {function.__module__}.{function.__qualname__}")
    print("\n".join(shown))


class Folded:
    """Source that a notebook shows as one line, and whole after a click; `fold` makes it."""

    def __init__(self, title: str, path: str, source: str):
        self.title, self.path, self.source = title, path, source

    def __repr__(self) -> str:
        return f"{self.title}: {self.source.count(chr(10)) + 1} lines, {self.path}"

    def _repr_html_(self) -> str:
        # A link relative to notebooks/, where lessons run.
        link = f'<a href="../{html.escape(self.path)}">{html.escape(self.path)}</a>'
        summary = f"<code>{html.escape(self.title)}</code>, {self.source.count(chr(10)) + 1} lines of {link}"
        return f"<details><summary>{summary}</summary><pre>{html.escape(self.source)}</pre></details>"


def fold(function: Callable) -> Folded:
    """A kernel or function of the library or the course, folded, with a link to its file.

    Raises:
        TypeError: ``function`` has no Python source, or its file is not in ``src``.
    """
    function = _unwrap(function)
    source, path = _source_of(function), Path(inspect.getsourcefile(function))
    if not path.is_relative_to(ROOT):
        raise TypeError(f"function must be of a file in {ROOT.name}, got {function.__qualname__} of {path.name}")
    return Folded(function.__qualname__, f"{ROOT.name}/{path.relative_to(ROOT).as_posix()}", source)


def _unwrap(function: Callable) -> Callable:
    """The Python function inside Triton's wrappers, of which autotune and jit may be stacked."""
    while hasattr(function, "fn"):
        function = function.fn
    return inspect.unwrap(function)


def _source_of(function: Callable) -> str:
    try:
        (lines, first), (file, _) = inspect.getsourcelines(function), inspect.findsource(function)
    except (TypeError, OSError) as error:
        raise TypeError(f"function must have Python source to show, got {function!r}") from error
    above = file[: max(first - 1, 0)]
    while above and above[-1].lstrip().startswith("@"):  # CuTe DSL's compiler leaves a function without them
        lines.insert(0, above.pop())
    return textwrap.dedent("".join(lines)).rstrip()


def _find(name: str, place: int | str, lines: list[str], start: int) -> int:
    """Number, from 1, of the line that a number or text means."""
    if isinstance(place, bool) or not isinstance(place, int | str):
        raise TypeError(f"{name} must be a line number or a text, got {place!r}")
    if isinstance(place, int):
        if not 1 <= place <= len(lines):
            raise ValueError(f"{name} must be a line from 1 to {len(lines)}, got {place}")
        return place
    for number in range(start, len(lines) + 1):
        if place in lines[number - 1]:
            return number
    raise ValueError(f"{name} must be a text of the source from line {start} on, got {place!r}")


def _indent_of(lines: list[str]) -> str:
    """White space before the first of the lines that is not blank."""
    line = next((line for line in lines if line.strip()), "")
    return line[: len(line) - len(line.lstrip())]


def side_by_side(left: str, right: str, titles: tuple[str, str] = ("", ""), width: int = 58) -> str:
    """Two texts in two columns of ``width`` characters, without their indentation and final semicolons.

    A longer line goes on in the next row, indented.
    """
    heads = [f"{title:<{width}.{width}}" for title in titles]
    rows = ["  ".join(heads).rstrip(), "  ".join(["─" * width] * 2)] if any(titles) else []
    for pair in zip_longest(_lines(left), _lines(right), fillvalue=""):
        for cells in zip_longest(*(_wrapped(line, width) for line in pair), fillvalue=""):
            rows.append(f"{cells[0]:<{width}}  {cells[1]}".rstrip())
    return "\n".join(rows)


def _lines(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", line).strip(" ;") for line in text.splitlines()]


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False) or [""]
