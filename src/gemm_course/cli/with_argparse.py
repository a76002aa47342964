"""Reads a subcommand's arguments with argparse, where Typer is not installed: beside the library alone.

It takes the same signatures as Typer does, as far as the subcommands of the library use them. `Option` and
`BadParameter` stand in for Typer's.
"""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import get_args, get_origin

from gemm_course.cli import terminal
from gemm_course.cli.exit_codes import OK, USAGE, Stop

BadParameter = argparse.ArgumentTypeError


def Option(*flags: str, **settings: object) -> SimpleNamespace:
    """The description of an option: its flags, and `help`, `metavar` or `parser`."""
    return SimpleNamespace(flags=flags, **settings)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise Stop(USAGE, f"{message}\n{self.prog} --help shows the options.")


def parse(name: str, module: ModuleType, arguments: Sequence[str]) -> Callable[[], int] | int:
    """The call that a command line means; or an exit code, where it asked for the help."""
    parser = _parser(name, module)
    values = vars(parser.parse_args(arguments))
    if values.pop("help"):
        print(parser.format_help(), end="")
        return OK
    return functools.partial(module.run, **values)


def words(name: str, module: ModuleType) -> list[str]:
    """The options of a subcommand, for shell completion."""
    return [each for action in _parser(name, module)._actions for each in action.option_strings if each != "-h"]


def _parser(name: str, module: ModuleType) -> _Parser:
    parser = _Parser(
        prog=f"course {name}", usage=f"course {name} [OPTIONS]", add_help=False, allow_abbrev=False,
        description=terminal.help_text(inspect.getdoc(module.run)), epilog=terminal.help_text(module.EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for each in inspect.signature(module.run, eval_str=True).parameters.values():
        kind, option = get_args(each.annotation)
        kind = (get_args(kind) or (kind,))[0] if get_origin(kind) is not list else kind  # `float | None` is float
        settings = {"dest": each.name, "default": each.default, "help": option.help}
        if kind is bool:
            settings["action"] = "store_true"
        elif get_origin(kind) is list:
            settings |= {"action": "append", "type": get_args(kind)[0], "metavar": option.metavar}
        else:
            settings |= {"type": getattr(option, "parser", kind), "metavar": option.metavar}
        parser.add_argument(*(option.flags or ["--" + each.name.replace("_", "-")]), **settings)
    parser.add_argument("-h", "--help", action="store_true", help="show this text")
    return parser
