"""Helpers of a lesson that runs as a script: print and save the values that a notebook would display."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

_figures = 0  # saved by this script


def show(*values: object) -> None:
    """Print values as a cell does, each on lines of its own; None is nothing.

    A figure becomes a file in ``<name of the script>_figures`` of the working directory, and its path is printed.
    """
    for value in values:
        if hasattr(value, "savefig"):
            print(_save(value))
        elif value is not None:
            print(repr(value))


def _save(figure) -> Path:
    global _figures
    _figures += 1
    folder = Path(f"{Path(sys.argv[0]).stem or 'lesson'}_figures")
    folder.mkdir(exist_ok=True)
    figure.savefig(path := folder / f"{_figures:02}.png")
    return path


@contextlib.contextmanager
def expected_error() -> Iterator[None]:
    """Print the error of the lines inside, and go on after them.

    Raises:
        AssertionError: the lines raised none.
    """
    try:
        yield
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    else:
        raise AssertionError("the lesson wants to show an error here, and there was none")
