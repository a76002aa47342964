"""`course lab`: open the course's notebooks in JupyterLab, from a checkout of its repository."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from gemm_course.notebook_files.locations import checkout

EXAMPLES = """\
examples:
  course lab               at the first notebook, on port 8888 or the next that is free
  course lab --port 9000

exit codes: JupyterLab's own; 2 wrong usage; 3 no checkout of the course here, or no JupyterLab installed
"""
CANNOT = 3


def _port(text: str) -> int:
    if not text.isdigit() or not 1024 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 1024 to 65535, got {text!r}")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--port", type=_port, default=8888, help="first port to try (default: 8888)")


def run(arguments: argparse.Namespace) -> int:
    """Become the course's own starter of JupyterLab, which `make lab` calls too.

    Args:
        arguments: of `add_arguments`.

    Returns:
        The exit code where it could not start; otherwise this process ends with JupyterLab.
    """
    root = checkout()
    if root is None:
        print(
            "course lab: the notebooks lie in the course's repository, and this library is installed without them. "
            "Clone the repository and run `make lab` there.",
            file=sys.stderr,
        )
        return CANNOT
    if importlib.util.find_spec("jupyterlab") is None:
        print(
            f"course lab: JupyterLab is not installed in {sys.executable}. `make lab` in {root} installs it, with all "
            "that the course needs.",
            file=sys.stderr,
        )
        return CANNOT
    sys.stdout.flush()
    # Replaced, not called: Ctrl-C and the exit code are the server's, and nothing stands between.
    os.execv(sys.executable, [sys.executable, str(root / "tools" / "lab.py"), str(arguments.port)])
