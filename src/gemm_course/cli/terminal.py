"""What the command's output looks like: colour and a line of progress on a terminal, plain text anywhere else."""

from __future__ import annotations

import codecs
import os
import shutil
import sys
from typing import TextIO

SOLVED, WRONG, OPEN = "✓", "✗", "·"
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_MARKS = {SOLVED: "green", WRONG: "red", OPEN: "dim", "–": "dim"}
# For terminals whose encoding lacks the marks.
_ASCII = {SOLVED: "+", WRONG: "x", OPEN: ".", "–": "-", "−": "-", "×": "x", "█": "#", "░": ".", "…": "..."}


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("course-spelled", _spell)


def prepare() -> None:
    """Have characters that this process's output cannot encode spelled in ASCII, where Python would raise."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="course-spelled")


def moves(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose cursor can be moved.

    Args:
        stream: stdout or stderr.
    """
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def paint(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """Text in a style, for a terminal; elsewhere, and where NO_COLOR is set, the text as it is.

    Args:
        text: one line.
        styles: "bold", "dim", "red", "green" or "yellow".
        stream: that it goes to. Default: stdout.
    """
    if not styles or not moves(stream or sys.stdout) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


def mark(sign: str) -> str:
    """A mark in its colour.

    Args:
        sign: `SOLVED`, `WRONG` or `OPEN`.
    """
    return paint(sign, _MARKS[sign])


def verdict(status: str) -> str:
    """The mark of a result.

    Args:
        status: of the result; neither "passed" nor "failed" is still open.
    """
    return mark({"passed": SOLVED, "failed": WRONG}.get(status, OPEN))


def result(text: str) -> str:
    """The text of a check's result, in colour where there is any.

    Args:
        text: `Result.text()`.
    """
    first, *lines = text.splitlines()
    painted = [paint(first, "bold")]
    for line in lines:
        if line[:2] == "  " and line[2:3] in _MARKS:
            line = f"  {mark(line[2])}{line[3:]}"
        elif line.startswith("pass:"):
            line = paint(line, "bold", "green")
        elif line.startswith(("not yet:", "not checked:", "TODO ")):
            line = paint(line, "bold", "yellow")
        elif line.startswith("  | "):
            line = paint(line, "dim")
        painted.append(line)
    return "\n".join(painted)


def bar(done: int, total: int, width: int = 24) -> str:
    """A bar of progress.

    Args:
        done: so many of `total`.
        total: at least 0.
        width: characters.
    """
    filled = width * min(max(done, 0), total) // total if total else 0
    return "█" * filled + "░" * (width - filled)


class Status:
    """One line on stderr that says what is being waited for, and goes when the wait is over. Only on a terminal."""

    def __init__(self):
        self._moves = moves(sys.stderr)
        self._shown = False

    def __enter__(self) -> Status:
        return self

    def __exit__(self, *_) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replace the line.

        Args:
            text: one line; cut off at the terminal's width.
        """
        if self._moves:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{text[:width]}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Take the line away, before anything else is printed."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
