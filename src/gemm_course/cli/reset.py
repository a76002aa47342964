"""`course reset NN`: an exercise's notebook as it was handed out; what was in it is kept beside it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from gemm_course.cli import choice, terminal
from gemm_course.exercises import manifest
from gemm_course.notebook_files import locations as places
from gemm_course.notebook_files import stubs as generate

EXAMPLES = """\
examples:
  course reset 03          asks first; your notebook is kept as exercises/03_tail_masks.backup-1.ipynb
  course reset 03 --yes    does not ask
  course reset 04          the one of lesson 04 that you are at; asks for 04a or 04b where that is not clear

Progress stays as it is: a pass remains a pass.

exit codes: 0 done, or there was nothing to do; 1 you said no; 2 wrong usage, or nobody to ask and no --yes;
            3 the notebook cannot be written, or this installation cannot make it
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "Put an exercise's notebook back as it was handed out. Yours is kept beside it."
    parser.add_argument("exercise", metavar="NN", nargs="?", help="number or name of an exercise")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    """Put the stub back."""
    try:
        exercise, why = choice.one(arguments.exercise, "reset")
    except ValueError as error:
        print(f"course: {error}", file=sys.stderr)
        return 2
    if why:
        print(why)
    path = places.notebook(exercise, arguments.exercise)
    try:
        return _reset(exercise, path.resolve(), arguments.yes)
    except OSError as error:
        print(f"course reset: {places.shown(path)} cannot be written: {error.strerror}", file=sys.stderr)
        return 3


def _reset(exercise: manifest.Exercise, path: Path, yes: bool) -> int:
    stub = places.stub(exercise)
    if stub is None:
        print(
            "course reset: notebooks are made from the course's repository, which is not here, and this installation "
            f"brought no copy. Take exercises/{path.name} from where you got it.",
            file=sys.stderr,
        )
        return 3
    name, kept = places.shown(path), None
    if path.exists():
        if _sources(path) == [(cell["cell_type"], "".join(cell["source"])) for cell in stub["cells"]]:
            print(f"{name} is as it was handed out: nothing to do")
            return 0
        kept = _free(path)
    if not yes:
        if not sys.stdin.isatty():
            print("course reset: there is nobody to ask; say --yes", file=sys.stderr)
            return 2
        print(f"Put the empty exercise {exercise.id} into {name}?", f"Yours is kept as {kept.name}." if kept else "")
        if not _agreed():
            print("left as it is")
            return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    if kept:
        _keep(path, kept)
    _put(stub, path)
    print(f"{terminal.mark(terminal.SOLVED)} {name} is as it was handed out")
    if kept:
        print(f"  yours is kept: {places.shown(kept)}")
        print("  If it is open in JupyterLab: File > Reload Notebook from Disk.")
    return 0


def _agreed() -> bool:
    try:
        return input("[y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def _sources(path: Path) -> list[tuple[str, str]] | None:
    """Type and source of every cell; None where it is no notebook any more."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _free(path: Path) -> Path:
    """A name beside a notebook that no file has."""
    number = 1
    while (kept := path.with_name(f"{path.stem}.backup-{number}.ipynb")).exists():
        number += 1
    return kept


def _keep(path: Path, kept: Path) -> None:
    with open(path, "rb") as old, open(kept, "xb") as copy:  # x: never over another backup
        shutil.copyfileobj(old, copy)


def _put(notebook: dict, path: Path) -> None:
    """Write a notebook, whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}", suffix=".tmp")
    os.close(handle)
    try:
        generate.write(notebook, Path(name))
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
