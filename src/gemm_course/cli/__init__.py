"""The `course` command: `app` and one file for each subcommand. It needs Typer and Rich, which the library does not."""

import importlib.util
import sys

if missing := [name for name in ("rich", "typer") if importlib.util.find_spec(name) is None]:
    print(
        f"course: {' and '.join(missing)} not installed: pip install rich typer brings what this command needs, "
        "pip install '.[course]' in a checkout of the course's repository all that the course needs",
        file=sys.stderr,
    )
    sys.exit(3)
