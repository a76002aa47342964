"""Reads a subcommand's arguments with Typer."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import typer
from typer.core import TyperCommand

from gemm_course.cli import terminal
from gemm_course.cli.exit_codes import Stop
from gemm_course.exercises import manifest


class _Command(TyperCommand):
    """A command whose help ends with its examples, at the terminal's width."""

    def get_params(self, ctx) -> list:
        params = super().get_params(ctx)
        for each in params:
            if getattr(each, "is_flag", False):
                each.metavar = ""  # otherwise the help shows <bool>, as if it took a value
        return params

    def format_help(self, ctx, formatter) -> None:
        examples, self.epilog = self.epilog, None  # Rich would wrap the lines of examples as a paragraph
        super().format_help(ctx, formatter)
        if examples:
            formatter.write(f"\n{terminal.help_text(examples)}\n")


def parse(name: str, module: ModuleType, arguments: Sequence[str]) -> Callable[[], int] | int:
    """The call that a command line means; or an exit code, where Typer has shown the help.

    The call is made after Typer has returned: Typer would handle a closed pipe and Ctrl-C in its own way.
    """
    try:
        return _command(module)(arguments, f"course {name}", standalone_mode=False)
    except SystemExit:  # Typer's answer to a closed pipe
        raise BrokenPipeError from None
    except typer.TyperException as error:
        text = f"{error.format_message()}\ncourse {name} --help shows the options."
        raise Stop(error.exit_code, text) from None


def words(name: str, module: ModuleType) -> list[str]:
    """The options of a subcommand; before them the exercises, if it takes one. For shell completion."""
    parameters = _command(module).params
    takes_exercise = any(each.metavar == "NN" and each.param_type_name == "argument" for each in parameters)
    exercises = manifest.exercises() if takes_exercise else ()
    options = [option for each in parameters for option in each.opts if option.startswith("--")]
    return [*(each.id for each in exercises), *options, "--help"]


def _command(module: ModuleType) -> TyperCommand:
    """A subcommand as Typer has it. It returns the call that its arguments mean."""

    @functools.wraps(module.run)
    def bind(**options) -> Callable[[], int]:
        return functools.partial(module.run, **options)

    app = typer.Typer(add_completion=False, rich_markup_mode="rich" if terminal.has_styles(sys.stdout) else None)
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
    app.command(cls=_Command, epilog=getattr(module, "EXAMPLES", None), context_settings=settings)(bind)
    return typer.main.get_command(app)
