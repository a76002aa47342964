"""The `course` command: one table of subcommands, each loaded when it is asked for.

A subcommand is a module that offers `add_arguments(parser)`, which adds its options and may set the parser's
description, and `run(arguments) -> int`, which returns the exit code; with `EXAMPLES`, a text, its help ends in them.
To add one, add its line to `SUBCOMMANDS`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from gemm_course.cli import terminal

# What scripts can rely on, whatever the subcommand; each says in its own help what FAILED means for it.
OK, FAILED, USAGE, CANNOT, INTERRUPTED = 0, 1, 2, 3, 130


LEARN, TEACH, MEASURE = "to learn", "to teach", "to measure"


class Subcommand(NamedTuple):
    """One line of the table."""

    module: str
    """Loaded when the subcommand is asked for."""
    help: str
    """One line for the overview."""
    purpose: str = LEARN
    """Heading in the overview."""


SUBCOMMANDS: dict[str, Subcommand] = {
    "doctor": Subcommand("gemm_course.cli.doctor", "what this machine has, and what of the course runs how"),
    "lab": Subcommand("gemm_course.cli.lab", "open the notebooks in JupyterLab"),
    "list": Subcommand("gemm_course.cli.list_", "the exercises: what each is about, and what comes next"),
    "check": Subcommand("gemm_course.cli.check", "how far an answer is; with --watch, at each save"),
    "progress": Subcommand("gemm_course.cli.progress_", "points, hints used, and what comes next"),
    "hint": Subcommand("gemm_course.cli.hint", "the next hint of an exercise"),
    "solution": Subcommand("gemm_course.cli.solution", "the answer, after a pass or with --give-up"),
    "reset": Subcommand("gemm_course.cli.reset", "an exercise's notebook as it was handed out"),
    "grade": Subcommand("gemm_course.cli.grade", "grade a folder of submissions", TEACH),
    "bench": Subcommand("gemm_course.cli.bench", "time grouped_mm against its peers on this GPU", MEASURE),
    "tune": Subcommand("gemm_course.cli.tune", "measure the packed kernels' configurations", MEASURE),
}

EXAMPLES = """\
start here:
  course doctor            does everything run here?
  course lab               open the first notebook
  course list              the exercises, and what comes next

at an exercise:
  course check 03 --watch  how far is the answer? again each time that the notebook is saved
  course hint 03           stuck? a nudge, then more
  course check --help      a subcommand's options

exit codes: 0 done; 1 the answer is no (the subcommand's help says what that means); 2 wrong usage;
            3 this machine or installation cannot do it; 130 interrupted
"""


def overview() -> str:
    """The command's help.

    Returns:
        Usage, every subcommand with its line, examples, exit codes.
    """
    width = max(map(len, SUBCOMMANDS)) + 3
    lines = [
        "usage: course SUBCOMMAND [options]",
        "",
        "Learn how grouped GEMM kernels work, and use the ones built here.",
    ]
    for purpose in (LEARN, TEACH, MEASURE):
        rows = {name: each.help for name, each in SUBCOMMANDS.items() if each.purpose == purpose}
        lines += ["", f"{purpose}:", *(f"  {name:<{width}}{text}" for name, text in rows.items())]
    return "\n".join([*lines, "", EXAMPLES.rstrip()])


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, SUBCOMMANDS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(SUBCOMMANDS)}"
    return f"course: no subcommand {name!r}; {hint}\ncourse --help shows what each does."


def parser_of(name: str) -> tuple[argparse.ArgumentParser, object]:
    """The parser of a subcommand, and its module.

    Args:
        name: in `SUBCOMMANDS`.

    Returns:
        An argparse parser that calls itself `course NAME`, and the module that it was filled by.
    """
    module = importlib.import_module(SUBCOMMANDS[name].module)
    parser = argparse.ArgumentParser(
        prog=f"course {name}",
        description=SUBCOMMANDS[name].help,
        epilog=getattr(module, "EXAMPLES", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return parser, module


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        arguments: of the command line; None takes the process's own.

    Returns:
        The exit code, one of those that `course --help` lists.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    terminal.prepare()
    if len(arguments) > 1 and arguments[0] == "help":
        arguments = [arguments[1], "--help"]
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(overview(), flush=True)
            return OK
        if arguments[0] == "--version":
            import course_kernels

            print(f"course {course_kernels.__version__}", flush=True)
            return OK
        name, *rest = arguments
        if name not in SUBCOMMANDS:
            print(_unknown(name), file=sys.stderr)
            return USAGE
        parser, module = parser_of(name)
        try:
            options = parser.parse_args(rest)
        except SystemExit as leave:  # argparse has said what is wrong, or shown the help
            return OK if leave.code is None else int(leave.code)
        code = module.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader (head, less) has seen enough
        # Python flushes once more when it ends, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        print("\ncourse: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
