"""The `course` command: `app` and one file for each subcommand.

The library installed alone has it, too, with the subcommands that need no more than torch and Triton.
"""

import importlib.util
import sys

_OF_THE_COURSE = ("msgspec", "rich", "typer", *(("tomli",) if sys.version_info < (3, 11) else ()))


def missing() -> list[str]:
    """Packages that the course's own subcommands need and that are not installed here."""
    return [name for name in _OF_THE_COURSE if importlib.util.find_spec(name) is None]
