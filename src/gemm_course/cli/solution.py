"""`course solution NN`: the cell that solves an exercise, once it has been passed or given up."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Option

from gemm_course import progress
from gemm_course.cli import terminal
from gemm_course.cli.exercise_argument import find_one
from gemm_course.cli.exit_codes import CANNOT, FAILED, OK, Stop
from gemm_course.cli.options import ExerciseName
from gemm_course.exercises import manifest
from gemm_course.notebook import cells, locations, stubs

EXAMPLES = """\
examples:
  course solution 03              after a pass: one way to write it, to compare with
  course solution 03 --give-up    without one
  course solution 04              of the one of lesson 04 that you are at; asks for 04a or 04b where that is not clear

exit codes: 0 shown; 1 not passed yet; 2 no such exercise, or several of which any may be meant;
            3 this installation has no solutions
"""


def run(
    exercise: ExerciseName = None,
    give_up: Annotated[bool, Option("--give-up", help="show it before a pass, too")] = False,
) -> int:
    """Show the cell that solves an exercise, after a pass.

    With --give-up before one; `course progress` then says so, and the points can still be earned.
    """
    found, why = find_one(exercise, "solution")
    entry = progress.entry_of(progress.load(), found.id)
    if not entry["passed"] and not give_up:
        print("\n".join(filter(None, [why, _not_yet(found, entry)])), file=sys.stderr)
        return FAILED
    path = locations.solution(found)
    if path is None:
        raise Stop(CANNOT, "the solutions are in the course's repository, which is not here. Clone it, and ask there; "
                   f"`course hint {found.id}` works here.")  # fmt: skip
    try:
        source = cells.of_notebook(path, found.function)
    except ValueError as error:
        raise Stop(CANNOT, error) from None
    if not entry["passed"]:
        progress.note_given_up(found.id)
    if why:
        print(f"# {why}")
    print(f"# Exercise {found.id} · {found.title}")
    for line, is_solution in stubs.solution_lines(source):
        print(terminal.paint(line, "green") if is_solution else line)
    return OK


def _not_yet(exercise: manifest.Exercise, entry: dict) -> str:
    left = len(exercise.hints) - entry["hints"]
    hints = f"{left} of {len(exercise.hints)} hints are left" if left > 0 else "the last hint again"
    return (
        f"The solution of {exercise.id} is shown after a pass; so far {entry['points']} of {exercise.points} points.\n"
        f"  course check {exercise.id}                what is missing\n"
        f"  course hint {exercise.id}                 {hints}\n"
        f"  course solution {exercise.id} --give-up   shows it now"
    )
