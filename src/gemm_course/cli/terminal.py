"""The look of the command's output: styles and a line of progress on a terminal, plain text anywhere else.

Characters that an encoding lacks are spelled in ASCII, and NO_COLOR takes bold away, too. Rich draws what moves, and is
imported then: the library installed alone lacks it.
"""

from __future__ import annotations

import codecs
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

SOLVED, WRONG, OPEN = "✓", "✗", "·"
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}  # of ANSI's escape sequences
_MARKS = {SOLVED: "green", WRONG: "red", OPEN: "dim", "–": "dim"}
_RESULT_STYLES = {
    r"\A.*": "bold", r"^pass:.*": "bold green", r"^(not yet:|not checked:|TODO ).*": "bold yellow",
    r"^  \| .*": "dim", **{f"(?<=^  ){sign}": style for sign, style in _MARKS.items()},
}  # fmt: skip
# For terminals whose encoding lacks the marks.
_ASCII = {SOLVED: "+", WRONG: "x", OPEN: ".", "–": "-", "−": "-", "×": "x", "█": "#", "░": ".", "…": "...", "→": "->"}
_PAINTED = "\x1b\\[[0-9;]*m"


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


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal whose cursor can be moved."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def has_styles(stream: TextIO) -> bool:
    """Return whether a stream shows colours and bold, and its user wants them."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def console(stream: TextIO) -> Console:
    """Rich's console for stdout or stderr, as wide as its terminal."""
    from rich.console import Console

    return Console(
        file=stream, force_terminal=is_terminal(stream), color_system="standard" if has_styles(stream) else None,
        highlight=False, markup=False, emoji=False,
    )  # fmt: skip


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """Text in a style such as "bold green", for a terminal (default: stdout); for other streams, as it is."""
    return with_style(text, style) if has_styles(stream or sys.stdout) else text


def wrap(text: str, start: str = "", indent: str = "") -> str:
    """Text in lines of at most `width()` columns, after `start` and then `indent`; no word or path is broken."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, width(), initial_indent=start, subsequent_indent=indent, **options)


def fit(text: str, stream: TextIO | None = None) -> str:
    """Text for a stream (default: stdout), wrapped at the width of a terminal; for any other stream, as it is.

    Each line is wrapped under its own indentation and mark.
    """
    if not (is_terminal(stream or sys.stdout) or os.environ.get("COLUMNS")):
        return text
    lines = []
    for line in text.splitlines():
        start = re.match(rf"\s*(\| |[{''.join(_MARKS)}] )?", line)[0]
        indent = start if start.endswith("| ") else " " * len(start)
        lines.append(line if len(line) <= width() else wrap(line[len(start) :], start, indent))
    return "\n".join(lines)


def help_text(text: str) -> str:
    """A help's examples and paragraphs at the terminal's width. A description is aligned, or below a long command."""
    lines: list[str] = []
    for line in text.splitlines():
        paragraph = bool(lines and lines[-1].strip()) and not lines[-1].startswith(" ") and not lines[-1].endswith(":")
        if line.strip() and (line.startswith(" " * 8) or (paragraph and not line.startswith(" "))):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    wrapped = []
    for line in lines:
        command = re.match(r"( {2}\S.*?\S {2,})(\S.*)", line)
        if command and len(command[1]) > width() // 2:
            wrapped += [command[1].rstrip(), wrap(command[2], " " * 6, " " * 6)]
        elif command:
            wrapped.append(wrap(command[2], command[1], " " * len(command[1])))
        else:
            indent = " " * (12 if line.startswith("exit codes") else 4 if line.startswith(" ") else 0)
            wrapped.append(wrap(line, "", indent))
    return "\n".join(wrapped)


def width() -> int:
    """Columns of the terminal, at most 100; 80 if the output is no terminal's."""
    return min(shutil.get_terminal_size((80, 24)).columns, 100)


def with_style(text: str, style: str) -> str:
    """Text in a style such as "bold green", for any stream."""
    return f"\x1b[{';'.join(str(_CODES[word]) for word in style.split())}m{text}\x1b[0m" if text else ""


def mark(sign: str) -> str:
    """`SOLVED`, `WRONG` or `OPEN` in its colour."""
    return paint(sign, _MARKS[sign])


def verdict(status: str) -> str:
    """The mark of a result's status; neither "passed" nor "failed" is still open."""
    return mark({"passed": SOLVED, "failed": WRONG}.get(status, OPEN))


def result(text: str) -> str:
    """The text of a check's result, `Result.text()`, at the terminal's width and in its colours."""
    text = fit(text)
    for pattern, style in _RESULT_STYLES.items():
        text = re.sub(pattern, lambda found, style=style: paint(found[0], style), text, flags=re.MULTILINE)
    return text


def bar(done: int, total: int, width: int = 24) -> str:
    """A bar of progress: `done` of `total`, in `width` characters."""
    filled = width * min(max(done, 0), total) // total if total else 0
    return "█" * filled + "░" * (width - filled)


def columns(rows: Iterable[Sequence[str]], indent: int = 0, right: Sequence[int] = ()) -> str:
    """Rows of cells, which may be painted, as aligned columns; those whose index is in `right` are aligned right."""
    rows = [[each if has_styles(sys.stdout) else re.sub(_PAINTED, "", each) for each in row] for row in rows]
    sizes = [[len(re.sub(_PAINTED, "", each)) for each in row] for row in rows]
    widths = [max(column) for column in zip(*sizes)]
    lines = []
    for row, size in zip(rows, sizes):
        gaps = [" " * (width - used) for width, used in zip(widths, size)]
        cells = [gap + each if i in right else each + gap for i, (each, gap) in enumerate(zip(row, gaps))]
        lines.append(" " * indent + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _on_stderr(*columns: ProgressColumn) -> Progress:
    """A line on stderr that changes, and goes when the wait is over. Only on a terminal."""
    from rich.progress import Progress, TextColumn

    return Progress(
        *columns, TextColumn("{task.description}", markup=False), console=console(sys.stderr), transient=True,
        redirect_stdout=False, redirect_stderr=False, disable=not is_terminal(sys.stderr),
    )  # fmt: skip


class Status:
    """A line on stderr about the work in progress."""

    def __init__(self):
        self._line: Progress | None = None

    def __enter__(self) -> Status:
        return self

    def __exit__(self, *_) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replace the line; it is cut off at the terminal's width."""
        from rich.progress import SpinnerColumn

        self.clear()
        self._line = _on_stderr(SpinnerColumn("line"))
        self._line.add_task(text, total=None)
        self._line.start()

    def clear(self) -> None:
        """Take the line away, before anything else is printed."""
        if self._line is not None:
            self._line.stop()
            self._line = None


def progress(what: str) -> Progress:
    """A bar on stderr: "3 of 5" of something, the time left, each task's description."""
    from rich.progress import ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Bar(ProgressColumn):
        def render(self, task) -> Text:
            return Text(bar(int(task.completed), int(task.total or 0)))

    count = TextColumn("{task.completed} of {task.total} " + what, markup=False)
    return _on_stderr(Bar(), count, TimeRemainingColumn())
