"""Arguments and options that several subcommands share, as Typer reads them from a signature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from gemm_course.cli import missing
from gemm_course.cli.exit_codes import USAGE, Stop

if missing():
    from gemm_course.cli.with_argparse import BadParameter, Option
else:
    from typer import Argument, BadParameter, Option

    ExerciseName = Annotated[str | None, Argument(metavar="NN", help="number or name of an exercise")]

__all__ = ["ExerciseName", "File", "Json", "Names", "Option", "check_folders", "integer"]

Names = list[str] | None
File = Path | None
Json = Annotated[bool, Option("--json", help="print JSON")]


def integer(low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`, for `Option(parser=...)`."""

    def parse(text: str) -> int:
        if not str(text).isdigit() or not low <= int(text) <= high:
            raise BadParameter(f"must be a number from {low} to {high}, got {text!r}")
        return int(text)

    return parse


def check_folders(**files: Path | None) -> None:
    """End the subcommand where an option names a file or folder in a folder that does not exist."""
    for option, path in files.items():
        if path is not None and not path.absolute().parent.is_dir():
            raise Stop(USAGE, f"--{option} {path}: there is no folder {path.parent}")
