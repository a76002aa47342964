"""`course progress`: points and hints so far. `course list` shows the exercises."""

from __future__ import annotations

import json
from typing import Annotated

from typer import Option

from gemm_course import progress
from gemm_course.cli import terminal
from gemm_course.cli.exit_codes import CANNOT, OK, Stop
from gemm_course.cli.list_ import what_next, where_kept, with_tilde
from gemm_course.cli.options import Json
from gemm_course.exercises import manifest

EXAMPLES = """\
examples:
  course progress           points and hints of each exercise, and what comes next
  course progress --json    the same for a script
  course progress --anew    begin anew; what was reached so far is kept in a file beside

`course list` shows what the exercises are about, and their notebooks.

Progress belongs to your account on this machine: another clone of the course there counts on. Answers are in the
notebooks; `course reset NN` empties one.

exit codes: 0 done; 2 wrong usage; 3 the file cannot be renamed
"""


def run(
    as_json: Json = False,
    anew: Annotated[bool, Option("--anew", help="begin anew, and keep the old progress in a file beside")] = False,
) -> int:
    """Show the best points of each exercise, the hints used, and the next exercise."""
    if anew:
        return _begin_anew()
    kept, exercises = progress.load(), manifest.exercises()
    unsolved = progress.unsolved(exercises, kept)
    rows = []
    for each in exercises:
        entry = progress.entry_of(kept, each.id)
        points = min(entry["points"], each.points)  # an older version of the exercise may have given more
        rows.append({"id": each.id, "points": points, "of": each.points, "passed": entry["passed"],
                     "hints": entry["hints"], "gave_up": bool(entry.get("gave_up", False))})  # fmt: skip
    points, total = sum(row["points"] for row in rows), sum(row["of"] for row in rows)
    solved = len(exercises) - len(unsolved)
    if as_json:
        data = {"points": points, "of": total, "solved": solved, "exercises": rows, "kept_in": str(progress.path())}
        print(json.dumps({**data, "next": unsolved[0].id if unsolved else None}, indent=1))
        return OK
    print(f"{terminal.bar(points, total, 40)}  {points} of {total} points, {solved} of {len(exercises)} solved\n")
    for exercise, row in zip(exercises, rows):
        begun = terminal.WRONG if row["points"] else terminal.OPEN
        sign = terminal.mark(terminal.SOLVED if row["passed"] else begun)
        bar = terminal.paint(terminal.bar(row["points"], row["of"], 10), "dim")
        reached = f"{row['points']:>2} of {row['of']:>2}"
        taken = _help_taken(row, len(exercise.hints))
        gap = " " if 29 + len(exercise.title) + len(taken) <= terminal.width() else "\n" + " " * 28
        help_taken = gap + terminal.paint(taken, "dim") if taken else ""
        print(f"{sign} {row['id']:<5}{bar} {reached}  {exercise.title}{help_taken}")
    print(f"\n{what_next(kept)}\n")
    print(where_kept())
    return OK


def _begin_anew() -> int:
    try:
        kept = progress.begin_anew()
    except (OSError, RuntimeError) as error:
        raise Stop(CANNOT, f"{progress.path()} cannot be renamed: {error}") from None
    print(f"progress begins anew; the old one is {with_tilde(kept)}" if kept else "there is no progress yet")
    return OK


def _help_taken(row: dict, count: int) -> str:
    taken = [f"{min(row['hints'], count)} of {count} hints used"] if row["hints"] else []
    taken += ["solution shown before a pass"] if row["gave_up"] else []
    return f"({', '.join(taken)})" if taken else ""
