"""`course hint NN`: the next hint of an exercise."""

from __future__ import annotations

import argparse
import sys
import textwrap

from gemm_course.cli import choice, terminal
from gemm_course.exercises import manifest, progress

EXAMPLES = """\
examples:
  course hint 03     a nudge; asked again, the next hint, up to nearly the answer
  course hint        for the first exercise that is not solved
  course hint 04     for the one of lesson 04 that you are at; asks for 04a or 04b where that is not clear

exit codes: 0 done; 2 no such exercise, or several of which any may be meant
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "Give the next hint of an exercise."
    parser.add_argument("exercise", metavar="NN", nargs="?", help="number or name (default: the first unsolved)")


def run(arguments: argparse.Namespace) -> int:
    """Print the next hint."""
    if arguments.exercise:
        try:
            exercise, why = choice.one(arguments.exercise, "hint")
        except ValueError as error:
            print(f"course: {error}", file=sys.stderr)
            return 2
        if why:
            print(why)
    else:
        left = progress.unsolved(manifest.exercises(), progress.load())
        if not left:
            print("every exercise is solved; `course hint NN` gives the hints of one all the same")
            return 0
        exercise = left[0]
    count = len(exercise.hints)
    number = progress.next_hint(exercise.id, count)
    print(terminal.paint(f"Exercise {exercise.id} · {exercise.title}, hint {number + 1} of {count}:", "bold"))
    print("\n".join(textwrap.wrap(exercise.hints[number], 100, break_long_words=False, break_on_hyphens=False)))
    if number + 1 == count:
        print(f"\nThat was the last. `course solution {exercise.id} --give-up` shows the answer.")
    return 0
