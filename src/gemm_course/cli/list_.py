"""`course list`: the catalogue of exercises. What has been reached in them is `course progress`."""

from __future__ import annotations

import argparse
import json

from gemm_course.cli import terminal
from gemm_course.exercises import manifest, progress
from gemm_course.notebook_files import locations as places

EXAMPLES = """\
examples:
  course list           what there is, which of it is solved, what comes next
  course list --json    the same for a script

`course progress` shows points and hints.

exit codes: 0 done; 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "The exercises in order: what each is about, and in which notebook."
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List the exercises."""
    kept = progress.load()
    rows = [
        {
            "id": exercise.id,
            "title": exercise.title,
            "lesson": exercise.lesson,
            "function": exercise.function,
            "notebook": f"exercises/{exercise.name}.ipynb",
            "points": progress.entry_of(kept, exercise.id)["points"],
            "of": exercise.points,
            "passed": progress.entry_of(kept, exercise.id)["passed"],
        }
        for exercise in manifest.exercises()
    ]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    width, of_name = (max(len(row[key]) for row in rows) for key in ("title", "notebook"))
    for row in rows:
        sign = terminal.mark(terminal.SOLVED if row["passed"] else terminal.OPEN)
        where = terminal.paint(f"{row['notebook']:<{of_name}}", "dim")
        print(f"{sign} {row['id']:<5}{row['title']:<{width}}  {where}  {row['of']:>2} points")
    print(f"\n{following(kept)}")
    return 0


def following(kept: dict[str, dict]) -> str:
    """What to do next.

    Args:
        kept: from `progress.load`.

    Returns:
        The first unsolved exercise, and the commands that help with it; or that all is solved.
    """
    left = progress.unsolved(manifest.exercises(), kept)
    if not left:
        return terminal.paint("all solved", "bold", "green")
    exercise = left[0]
    found = places.notebook(exercise)
    if not found.exists():
        return f"next: {exercise.id} · {exercise.title}\n  course reset {exercise.id}   puts its notebook here"
    return (
        f"next: {terminal.paint(f'{exercise.id} · {exercise.title}', 'bold')}\n"
        f"  open {places.shown(found)} in JupyterLab (`course lab` starts it) and write {exercise.function}, then\n"
        f"  course check {exercise.id}   how far is it?\n"
        f"  course hint {exercise.id}    {_hints(exercise, kept)}"
    )


def _hints(exercise: manifest.Exercise, kept: dict[str, dict]) -> str:
    given = progress.entry_of(kept, exercise.id)["hints"]
    return f"a nudge; {given} of {len(exercise.hints)} hints used" if given else "a nudge, where it is stuck"
