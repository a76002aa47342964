"""`course lab`: open the course's notebooks in JupyterLab, from a checkout of its repository."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated

from typer import Option

from gemm_course.cli.exit_codes import CANNOT, Stop
from gemm_course.cli.options import integer
from gemm_course.notebook_files.locations import checkout

EXAMPLES = """\
examples:
  course lab               at the first notebook, on port 8888 or the next that is free
  course lab --port 9000

exit codes: JupyterLab's own; 2 wrong usage; 3 no checkout of the course here, or no JupyterLab installed
"""


def run(
    port: Annotated[int, Option(parser=integer(1024, 65535), metavar="N", help="first port to try")] = 8888,
) -> int:
    """Open the notebooks in JupyterLab."""
    root = checkout()
    if root is None:
        raise Stop(CANNOT, "the notebooks are in the course's repository, and this library is installed without them. "
                   "Clone the repository and run `make lab` there.")  # fmt: skip
    if importlib.util.find_spec("jupyterlab") is None:
        raise Stop(CANNOT, f"JupyterLab is not installed in {sys.executable}. `make lab` in {root} installs it, with "
                   "all that the course needs.")  # fmt: skip
    sys.stdout.flush()
    # Replaced, not called: Ctrl-C and the exit code are the server's.
    os.execv(sys.executable, [sys.executable, str(root / "tools" / "lab.py"), str(port)])
