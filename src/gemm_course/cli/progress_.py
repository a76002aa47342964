"""`course progress`: what has been reached. What there is to reach is `course list`."""

from __future__ import annotations

import argparse
import json

from gemm_course.cli import list_ as list_command
from gemm_course.cli import terminal
from gemm_course.exercises import manifest, progress

EXAMPLES = """\
examples:
  course progress           points and hints of each exercise, and what comes next
  course progress --json    the same for a script

`course list` shows what the exercises are about, and their notebooks.

exit codes: 0 done; 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "What has been reached: the best points of each exercise, hints used, what comes next."
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show what has been reached."""
    kept, exercises = progress.load(), manifest.exercises()
    entries = [(each, progress.entry_of(kept, each.id)) for each in exercises]
    # Points of an older version of an exercise may be more than it has now.
    points, total = sum(min(entry["points"], e.points) for e, entry in entries), sum(e.points for e in exercises)
    left = progress.unsolved(exercises, kept)
    solved = len(exercises) - len(left)
    if arguments.json:
        rows = [
            {
                "id": e.id, "points": min(entry["points"], e.points), "of": e.points, "passed": entry["passed"],
                "hints": entry["hints"], "gave_up": bool(entry.get("gave_up", False)),
            }
            for e, entry in entries
        ]  # fmt: skip
        data = {"points": points, "of": total, "solved": solved, "exercises": rows, "kept_in": str(progress.path())}
        print(json.dumps({**data, "next": left[0].id if left else None}, indent=1))
        return 0
    print(f"{terminal.bar(points, total, 40)}  {points} of {total} points, {solved} of {len(exercises)} solved\n")
    for exercise, entry in entries:
        reached = min(entry["points"], exercise.points)
        begun = terminal.WRONG if reached else terminal.OPEN
        sign = terminal.mark(terminal.SOLVED if entry["passed"] else begun)
        bar = terminal.paint(terminal.bar(reached, exercise.points, 10), "dim")
        points = f"{reached:>2} of {exercise.points:>2}"
        print(f"{sign} {exercise.id:<5}{bar} {points}  {exercise.title}{_help_taken(entry, exercise)}")
    print(f"\n{list_command.following(kept)}")
    return 0


def _help_taken(entry: dict, exercise: manifest.Exercise) -> str:
    hints = min(entry["hints"], len(exercise.hints))
    taken = [f"{hints} of {len(exercise.hints)} hints used"] if hints else []
    taken += ["solution shown before a pass"] if entry.get("gave_up") else []
    return terminal.paint(f" ({', '.join(taken)})", "dim") if taken else ""
