"""The `course` command: `app` and one file for each subcommand. It needs Typer and Rich, which the library does not."""

import importlib.util
import sys

if missing := [name for name in ("rich", "typer") if importlib.util.find_spec(name) is None]:
    print(
        f"course: {' and '.join(missing)} not installed: pip install 'grouped-gemm-course[course]' brings all that the "
        "course needs, pip install rich typer what this command needs",
        file=sys.stderr,
    )
    sys.exit(3)
