"""`course solution NN`: the cell that solves an exercise, once it has been passed or given up."""

from __future__ import annotations

import argparse
import sys

from gemm_course.cli import choice, terminal
from gemm_course.exercises import manifest, progress
from gemm_course.notebook_files import cells as submission
from gemm_course.notebook_files import locations as places

EXAMPLES = """\
examples:
  course solution 03              after a pass: one way to write it, to compare with
  course solution 03 --give-up    without one
  course solution 04              of the one of lesson 04 that you are at; asks for 04a or 04b where that is not clear

exit codes: 0 shown; 1 not passed yet; 2 no such exercise, or several of which any may be meant;
            3 this installation has no solutions
"""
_BEGIN, _END = "### BEGIN SOLUTION", "### END SOLUTION"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Show the cell that solves an exercise, after a pass. With --give-up before one; `course progress` then says "
        "so, and the points can still be earned."
    )
    parser.add_argument("exercise", metavar="NN", nargs="?", help="number or name of an exercise")
    parser.add_argument("--give-up", action="store_true", help="show it before a pass, too")


def run(arguments: argparse.Namespace) -> int:
    """Print the solution, if it may be shown."""
    try:
        exercise, why = choice.one(arguments.exercise, "solution")
    except ValueError as error:
        print(f"course: {error}", file=sys.stderr)
        return 2
    entry = progress.entry_of(progress.load(), exercise.id)
    path = places.solution(exercise)
    if not entry["passed"] and not arguments.give_up:
        print("\n".join(filter(None, [why, _not_yet(exercise, entry)])), file=sys.stderr)
        return 1
    if path is None:
        print(
            "course solution: the solutions lie in the course's repository, which is not here. Clone it, and ask "
            f"there; `course hint {exercise.id}` works here.",
            file=sys.stderr,
        )
        return 3
    try:
        source = submission.of_notebook(path, exercise.function)
    except ValueError as error:
        print(f"course solution: {error}", file=sys.stderr)
        return 3
    if not entry["passed"]:
        progress.note_given_up(exercise.id)
    if why:
        print(f"# {why}")
    print(f"# Exercise {exercise.id} · {exercise.title}\n{_painted(source)}")
    return 0


def _painted(source: str) -> str:
    """The cell without the markers; on a terminal the lines between them stand out."""
    lines, inside = [], False
    for line in source.splitlines():
        if line.strip() in (_BEGIN, _END):
            inside = line.strip() == _BEGIN
        else:
            lines.append(terminal.paint(line, "green") if inside else line)
    return "\n".join(lines)


def _not_yet(exercise: manifest.Exercise, entry: dict) -> str:
    left = len(exercise.hints) - entry["hints"]
    hints = f"{left} of {len(exercise.hints)} hints are left" if left > 0 else "the last hint again"
    return (
        f"The solution of {exercise.id} is shown after a pass; so far {entry['points']} of {exercise.points} points.\n"
        f"  course check {exercise.id}                what is missing\n"
        f"  course hint {exercise.id}                 {hints}\n"
        f"  course solution {exercise.id} --give-up   shows it now"
    )
