"""`course lab`: open a learner's copies of the notebooks in JupyterLab, from a checkout of the course's repository.

It checks what can be missing and becomes `tools/lab.py`, as `make lab` does. With --copies it only makes the copies.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated

from typer import Option

from gemm_course.cli.exit_codes import CANNOT, OK, Stop
from gemm_course.cli.options import integer
from gemm_course.notebook import copies
from gemm_course.notebook.locations import COPIES, checkout

EXAMPLES = """\
examples:
  course lab               at the first notebook, on port 8888 or the next that is free
  course lab --port 9000
  course lab --copies      make the working copies, my_course/, for another editor, or bring them up to date

exit codes: JupyterLab's own; 2 wrong usage; 3 no checkout of the course here, no JupyterLab installed, or copies that
            cannot be written
"""


def run(
    port: Annotated[int, Option(parser=integer(1024, 65535), metavar="N", help="first port to try")] = 8888,
    only_copies: Annotated[
        bool, Option("--copies", help="make or update the working copies, and open nothing")
    ] = False,
) -> int:
    """Open your working copies of the notebooks in JupyterLab."""
    root = checkout()
    if root is None:
        raise Stop(CANNOT, "the notebooks are in the course's repository, and this library is installed without them. "
                   "Clone the repository and run `make lab` there.")  # fmt: skip
    if only_copies:
        try:
            print("\n".join(copies.update(root)) or f"{root / COPIES} is up to date")
        except OSError as error:
            raise Stop(CANNOT, f"{root / COPIES} cannot be written: {error}") from None
        return OK
    if importlib.util.find_spec("jupyterlab") is None:
        raise Stop(CANNOT, f"JupyterLab is not installed in {sys.executable}. `make lab` in {root} installs it, with "
                   "all that the course needs.")  # fmt: skip
    sys.stdout.flush()
    # Replaced, not called: Ctrl-C and the exit code are the server's.
    os.execv(sys.executable, [sys.executable, str(root / "tools" / "lab.py"), str(port)])
