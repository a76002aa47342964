"""`course check`: check the answers in the exercises' notebooks, as their own last cells do."""

from __future__ import annotations

import argparse
import json
import sys

from course_kernels.course import manifest, progress, submission
from course_kernels.course.lab import checkout

EXAMPLES = """\
examples:
  course check 02            the answer in exercises/02_tail_masks.ipynb, as it was last saved
  course check --all --json  all of them, for a script

exit codes: 0 every answer passes; 1 one does not, or is not there yet; 2 wrong usage; 3 no checkout of the course here
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "Check the answers in the exercises' notebooks, as they were last saved."
    parser.add_argument("exercise", metavar="NN", nargs="?", help="number or name of an exercise")
    parser.add_argument("--all", action="store_true", help="every exercise")
    parser.add_argument("--seed", type=int, help="draw the same inputs again")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check, print, and keep what was reached."""
    if bool(arguments.exercise) == arguments.all:
        print("course check: name one exercise, or say --all", file=sys.stderr)
        return 2
    try:
        found = manifest.exercises() if arguments.all else manifest.find(arguments.exercise)
    except ValueError as error:
        print(f"course: {error}", file=sys.stderr)
        return 2
    root = checkout()
    if root is None:
        print("course check: no checkout of the course here, and so no exercises/", file=sys.stderr)
        return 3
    from course_kernels.course.judge import Judge

    results, good = [], True
    with Judge() as judge:
        for exercise in found:
            path = root / "exercises" / f"{exercise.name}.ipynb"
            try:
                result = judge.check(exercise, submission.of_notebook(path, exercise.function), arguments.seed)
            except ValueError as error:
                good = False
                results.append({"exercise": exercise.id, "status": "missing", "message": str(error)})
                if not arguments.json:
                    print(f"Exercise {exercise.id} · {exercise.title}\n{error}")
                continue
            good = good and result.passed
            progress.note_result(exercise.id, result.points, result.passed)
            results.append({key: value for key, value in result.as_dict().items() if key != "panels"})
            if not arguments.json:
                print(result.text())
    if arguments.json:
        print(json.dumps(results, indent=1))
    return 0 if good else 1
