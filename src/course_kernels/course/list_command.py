"""`course list`: the exercises in order, and which of them are solved."""

from __future__ import annotations

import argparse
import json

from course_kernels.course import manifest, progress

EXAMPLES = """\
examples:
  course list           what there is, what is solved, what comes next
  course list --json    the same for a script

exit codes: 0 done; 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "The exercises in order, and which of them are solved."
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List the exercises."""
    kept = progress.load()
    rows = [
        {
            "id": exercise.id,
            "title": exercise.title,
            "notebook": f"exercises/{exercise.name}.ipynb",
            "points": kept.get(exercise.id, {}).get("points", 0),
            "of": exercise.points,
            "passed": kept.get(exercise.id, {}).get("passed", False),
        }
        for exercise in manifest.exercises()
    ]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    width = max(len(row["title"]) for row in rows)
    for row in rows:
        mark = "✓" if row["passed"] else "·"
        print(f"{mark} {row['id']:<4}{row['title']:<{width}}  {row['points']:>2} of {row['of']} points")
    unsolved = [row for row in rows if not row["passed"]]
    if unsolved:
        print(f"\nnext: open {unsolved[0]['notebook']}, or see how far it is with `course check {unsolved[0]['id']}`")
    else:
        print("\nall solved")
    return 0
