"""`course list`: the catalogue of exercises. `course progress` shows points and hints."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from gemm_course import progress
from gemm_course.cli import terminal
from gemm_course.cli.exit_codes import OK
from gemm_course.cli.options import Json
from gemm_course.exercises import manifest
from gemm_course.notebook import locations

EXAMPLES = """\
examples:
  course list           all exercises, those that are solved, and the next one
  course list --json    the same for a script

`course progress` shows points and hints.

exit codes: 0 done; 2 wrong usage
"""


def run(as_json: Json = False) -> int:
    """The exercises in order, with their titles and notebooks."""
    kept = progress.load()
    rows = []
    for each in manifest.exercises():
        entry, notebook = progress.entry_of(kept, each.id), locations.notebook(each)
        rows.append({"id": each.id, "title": each.title, "lesson": each.lesson, "function": each.function,
                     "notebook": locations.shown(notebook), "points": entry["points"], "of": each.points,
                     "passed": entry["passed"], "exists": notebook.exists()})  # fmt: skip
    if as_json:
        print(json.dumps(rows, indent=1))
        return OK
    signs = [terminal.mark(terminal.SOLVED if row["passed"] else terminal.OPEN) for row in rows]
    titles = [row["title"] if row["exists"] else f"missing: course reset {row['id']}" for row in rows]
    table = [
        (f"{sign} {Path(row['notebook']).stem}", title, f"{row['of']:>2} points")
        for sign, row, title in zip(signs, rows, titles)
    ]
    print(f"{terminal.columns(table)}\n\n{what_next(kept)}\n\n{where_kept()}")
    return OK


def where_kept() -> str:
    """Two lines: the file of the progress, which all clones of the course share, and the way to begin anew."""
    place = f"progress is kept in {with_tilde(progress.path())}, for all of this account"
    return terminal.paint(f"{terminal.wrap(place)}\n`course progress --anew` begins anew", "dim")


def with_tilde(path: Path) -> str:
    """A path with `~` for the home directory."""
    with contextlib.suppress(ValueError, RuntimeError):
        return str("~" / path.relative_to(Path.home()))
    return str(path)


def what_next(kept: dict[str, dict]) -> str:
    """The first unsolved exercise and the commands that help with it, or that all is solved; `kept` is the progress."""
    unsolved = progress.unsolved(manifest.exercises(), kept)
    if not unsolved:
        return terminal.paint("all solved", "bold green")
    exercise = unsolved[0]
    notebook = locations.notebook(exercise)
    if not notebook.exists():
        return f"next: {exercise.id} · {exercise.title}\n  course reset {exercise.id}   restores its notebook"
    given, count = progress.entry_of(kept, exercise.id)["hints"], len(exercise.hints)
    hints = f"the next hint; {given} of {count} used" if given else "a first hint"
    first = (
        f"open {locations.shown(notebook)} in JupyterLab (`course lab` starts it) and write {exercise.function}, then"
    )
    return (
        f"next: {terminal.paint(f'{exercise.id} · {exercise.title}', 'bold')}\n"
        f"{terminal.wrap(first, '  ', '  ')}\n"
        f"  course check {exercise.id}   checks your answer\n"
        f"  course hint {exercise.id}    {hints}"
    )
