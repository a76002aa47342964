"""`course reset NN`: an exercise's notebook as it was handed out; the old one is kept beside it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from gemm_course.cli import terminal
from gemm_course.cli.exercise_argument import find_one
from gemm_course.cli.exit_codes import CANNOT, FAILED, OK, USAGE, Stop
from gemm_course.cli.options import ExerciseName
from gemm_course.exercises import manifest
from gemm_course.notebook import copies, locations, stubs

EXAMPLES = """\
examples:
  course reset 03          asks first; your notebook is kept as exercises/03_tail_masks.backup-1.ipynb
  course reset 03 --yes    does not ask
  course reset 04          the one of lesson 04 that you are at; asks for 04a or 04b where that is not clear

Progress stays as it is: a pass remains a pass.

exit codes: 0 done, or there was nothing to do; 1 you said no; 2 wrong usage, or nobody to ask and no --yes;
            3 the notebook cannot be written, or this installation cannot make it
"""


def run(
    exercise: ExerciseName = None,
    yes: Annotated[bool, Option("--yes", help="do not ask")] = False,
) -> int:
    """Put an exercise's notebook back as it was handed out. Yours is kept beside it."""
    found, why = find_one(exercise, "reset")
    if why:
        print(terminal.fit(why))
    path = locations.notebook(found, exercise)
    try:
        return _reset(found, path.resolve(), yes)
    except OSError as error:
        raise Stop(CANNOT, f"{locations.shown(path)} cannot be written: {error.strerror}") from None


def _reset(exercise: manifest.Exercise, path: Path, yes: bool) -> int:
    stub = locations.stub(exercise)
    if stub is None:
        raise Stop(CANNOT, "notebooks are made from the course's repository, which is not here, and this installation "
                   f"brought no copy. Take exercises/{path.name} from where you got it.")  # fmt: skip
    name, backup = locations.shown(path), None
    if path.exists():
        if copies.cells_of(path) == copies.sources(stub):
            print(f"{name} is as it was handed out: nothing to do")
            return OK
        backup = _free_name(path)
    if not yes:
        if not sys.stdin.isatty():
            raise Stop(USAGE, "there is nobody to ask; say --yes")
        kept = f"Yours is kept as {backup.name}." if backup else ""
        print(terminal.fit(f"Put the empty exercise {exercise.id} into {name}? {kept}".rstrip()))
        if not _agreed():
            print("left as it is")
            return FAILED
    path.parent.mkdir(parents=True, exist_ok=True)
    if backup:
        with open(path, "rb") as old, open(backup, "xb") as copy:  # x: never over another backup
            shutil.copyfileobj(old, copy)
    stubs.write(stub, path)
    print(f"{terminal.mark(terminal.SOLVED)} {name} is as it was handed out")
    if backup:
        print(f"  yours is kept: {locations.shown(backup)}")
        print("  If it is open in JupyterLab: File > Reload Notebook from Disk.")
    return OK


def _agreed() -> bool:
    try:
        return input("[y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def _free_name(path: Path) -> Path:
    """A name beside a notebook that no file has."""
    number = 1
    while (backup := path.with_name(f"{path.stem}.backup-{number}.ipynb")).exists():
        number += 1
    return backup
