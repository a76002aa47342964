"""The `course` command: one table of subcommands, each loaded when it is asked for.

A subcommand is a module with a function `run`. Typer reads the options from its signature; its docstring is the
description; it returns the exit code. The text `EXAMPLES` ends the help; options named in `MANY` take several values,
as in `--rows a b`; `ALONE` has the value of an option that may be given without one. To add a subcommand, add its line
to `SUBCOMMANDS`. Where the library is installed without the course's packages, argparse reads the same signatures, and
the subcommands that do not need the course work.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gemm_course.cli import completion, missing, terminal
from gemm_course.cli.exit_codes import CANNOT, INTERRUPTED, OK, USAGE, Stop

if MISSING := missing():
    from gemm_course.cli import with_argparse as reader
else:
    from gemm_course.cli import with_typer as reader

LEARN, TEACH, MEASURE = "to learn", "to teach", "to measure"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of a write to stdout


class Subcommand(NamedTuple):
    """One line of the overview: a module, what it does, and the heading that it is under."""

    module: str
    help: str
    purpose: str = LEARN
    needs_course: bool = True  # more packages than torch and Triton


SUBCOMMANDS: dict[str, Subcommand] = {
    "doctor": Subcommand(
        "gemm_course.cli.doctor", "what works on this machine, and what to do about the rest", needs_course=False
    ),
    "lab": Subcommand("gemm_course.cli.lab", "open your copies of the notebooks in JupyterLab"),
    "list": Subcommand("gemm_course.cli.list_", "the exercises: what each is about, and what comes next"),
    "check": Subcommand("gemm_course.cli.check", "how far an answer is; with --watch, at each save"),
    "progress": Subcommand("gemm_course.cli.progress_", "points, hints used, and what comes next"),
    "hint": Subcommand("gemm_course.cli.hint", "the next hint of an exercise"),
    "solution": Subcommand("gemm_course.cli.solution", "the answer, after a pass or with --give-up"),
    "reset": Subcommand("gemm_course.cli.reset", "an exercise's notebook as it was handed out"),
    "grade": Subcommand("gemm_course.cli.grade", "grade a folder of submissions", TEACH),
    "bench": Subcommand("gemm_course.cli.bench", "time grouped_mm against its peers on this GPU", MEASURE, False),
    "tune": Subcommand("gemm_course.cli.tune", "fit the choice of kernels to this GPU", MEASURE, False),
}

_COURSE = "pip install '.[course]' in a checkout of the course's repository brings all that the course needs"
EXIT_CODES = """\
exit codes: 0 done; 1 the answer is no (the subcommand's help says what that means); 2 wrong usage;
            3 this machine or installation cannot do it; 130 interrupted
"""
EXAMPLES = f"""\
start here:
  course doctor            does everything run here?
  course lab               open the first notebook
  course list              the exercises, and what comes next

at an exercise:
  course check 03 --watch  how far is the answer? again each time that the notebook is saved
  course hint 03           stuck? a nudge, then more
  course check --help      a subcommand's options

shell completion:
  course --completion bash  prints the script, and how to turn it on; also zsh and fish

{EXIT_CODES}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand of these arguments (default: the process's own). Returns an exit code, see `course --help`."""
    argv = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed: `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as we run
    try:
        if callable(signal.getsignal(signal.SIGINT)):  # the handler of the imports, perhaps
            signal.signal(signal.SIGINT, signal.default_int_handler)
        terminal.prepare()
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _drop_output()
        return OK
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        _drop_output()
        print(f"course: the output cannot be written: {error.strerror}", file=sys.stderr)
        return CANNOT
    except KeyboardInterrupt:
        print("\ncourse: interrupted", file=sys.stderr)
        return INTERRUPTED


def _drop_output() -> None:
    """Keep Python from a complaint: it flushes once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str) -> None:
    print(terminal.fit(text, sys.stderr), file=sys.stderr)


def _dispatch(argv: list[str]) -> int:
    if len(argv) > 1 and argv[0] == "help":
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return OK
    name, *arguments = argv
    if name in ("--version", "-V"):
        import course_kernels

        print(f"course {course_kernels.__version__}")
        return OK
    if name == "--completion":
        return _print_completion(arguments)
    if name == "--complete":
        print("\n".join(completion.candidates(arguments, _available(), _words)))
        return OK
    if name.startswith("-"):
        advice = "options follow a subcommand, as in `course list --json`"
        if "completion" in name:
            advice = "`course --completion bash` prints the script"
        _complain(f"course: no option {name}; {advice}\ncourse --help shows the subcommands.")
        return USAGE
    if name not in SUBCOMMANDS:
        near = difflib.get_close_matches(name, SUBCOMMANDS, n=3, cutoff=0.5)
        near = [*(f"`course {each} --{name}`" for each in _available() if f"--{name}" in _words(each)), *near]
        hint = f"did you mean {' or '.join(near[:3])}?" if near else f"there are: {', '.join(SUBCOMMANDS)}"
        _complain(f"course: no subcommand {name!r}; {hint}\ncourse --help shows what each does.")
        return USAGE
    try:
        parsed = _parse(name, arguments)
        return parsed() if callable(parsed) else parsed
    except Stop as stop:
        _complain(f"course {name}: {stop}")
        return stop.code


def overview() -> str:
    """The command's help: usage, every subcommand that works here with its line, examples, exit codes."""
    available = _available()
    width = max(map(len, available)) + 3
    lines = [
        "Usage: course SUBCOMMAND [OPTIONS]",
        "",
        "Learn how grouped GEMM kernels work, and use the ones built here.",
    ]
    for purpose in (LEARN, TEACH, MEASURE):
        rows = {name: each.help for name, each in available.items() if each.purpose == purpose}
        if not rows:
            continue
        lines += ["", terminal.paint(f"{purpose}:", "bold")]
        lines += [f"  {terminal.paint(f'{name:<{width}}', 'cyan')}{text}" for name, text in rows.items()]
    examples = f"The library is installed alone; {_COURSE}.\n\n{EXIT_CODES}" if MISSING else EXAMPLES
    return "\n".join([*lines, "", terminal.help_text(examples)])


def _available() -> dict[str, Subcommand]:
    """The subcommands whose packages are installed."""
    return {name: each for name, each in SUBCOMMANDS.items() if not (MISSING and each.needs_course)}


def _print_completion(shells: list[str]) -> int:
    if len(shells) != 1 or shells[0] not in completion.SCRIPTS:
        _complain(f"course: --completion wants the name of a shell: {', '.join(completion.SCRIPTS)}")
        return USAGE
    print(completion.SCRIPTS[shells[0]], end="")
    return OK


def _words(name: str) -> list[str]:
    """The words that a shell can complete after a subcommand: exercises, if it takes one, and options."""
    return reader.words(name, importlib.import_module(SUBCOMMANDS[name].module))


def _parse(name: str, arguments: list[str]) -> Callable[[], int] | int:
    """The call that a command line means; or an exit code, where the help was shown."""
    if MISSING and SUBCOMMANDS[name].needs_course:
        raise Stop(CANNOT, f"not installed: {', '.join(MISSING)}; {_COURSE}")
    module = importlib.import_module(SUBCOMMANDS[name].module)
    return reader.parse(name, module, _spread(arguments, getattr(module, "MANY", ()), getattr(module, "ALONE", {})))


def _spread(arguments: list[str], many: Sequence[str], alone: Mapping[str, str]) -> list[str]:
    """`--rows a b` in the form that Typer takes, `--rows a --rows b`, for options that take several values.

    An option that is given without a value gets the one that `alone` has for it.
    """
    spread, option = [], ""
    for before, each, after in zip(["", *arguments], arguments, [*arguments[1:], "-"]):
        if each.startswith("-"):
            option = each if each in many else ""
        elif option and before != option:
            spread.append(option)
        spread.append(each)
        if each in alone and after.startswith("-"):
            spread.append(alone[each])
    return spread


if __name__ == "__main__":
    sys.exit(main())
