"""`course hint NN`: the next hint of an exercise."""

from __future__ import annotations

import argparse
import sys

from course_kernels.course import manifest, progress

EXAMPLES = """\
examples:
  course hint 02     a nudge; asked again, the next hint, up to nearly the answer
  course hint        for the first exercise that is not solved

exit codes: 0 done; 2 no such exercise
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "Give the next hint of an exercise."
    parser.add_argument("exercise", metavar="NN", nargs="?", help="number or name (default: the first unsolved)")


def run(arguments: argparse.Namespace) -> int:
    """Print the next hint."""
    try:
        found = manifest.find(arguments.exercise) if arguments.exercise else _unsolved()
    except ValueError as error:
        print(f"course: {error}", file=sys.stderr)
        return 2
    if not found:
        print("every exercise is solved; `course hint NN` gives the hints of one all the same")
    for exercise in found:
        number = progress.next_hint(exercise.id, len(exercise.hints))
        print(f"Exercise {exercise.id}, hint {number + 1} of {len(exercise.hints)}:\n{exercise.hints[number]}")
    return 0


def _unsolved() -> tuple[manifest.Exercise, ...]:
    kept = progress.load()
    return tuple(each for each in manifest.exercises() if not kept.get(each.id, {}).get("passed"))[:1]
