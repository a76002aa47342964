"""A second wall around the processes that run answers: Bubblewrap, if it is installed and the system allows it.

With Landlock and seccomp the kernel refuses calls. A namespace shows the process nothing to ask for: no home and no
other user's file, no process but its own, no network. An answer that passes one wall still meets the other.

With a GPU it is not used: nobody has tested which files and calls a driver needs inside.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable

from gemm_course.isolation import landlock

_TRIAL_S = 5.0


def command(writable: str = "", readable: Iterable[str] = ()) -> list[str]:
    """The prefix of a command that runs it inside; empty if Bubblewrap does not work here.

    Args:
        writable: the folder in which it may do everything, if there is one.
        readable: places that it may read, beside those of the system, of Python and of our packages. A link is shown
            as a link and leads nowhere.
    """
    if not works():
        return []
    return [*_walls(tuple(readable)), *(("--bind", writable, writable) if writable else ()), "--"]


@functools.cache
def works() -> bool:
    """Try, once and in some milliseconds, whether Bubblewrap is installed and may make namespaces."""
    if shutil.which("bwrap") is None:
        return False
    try:
        trial = [*_walls(()), "--", sys.executable, "-S", "-c", ""]
        return subprocess.run(trial, capture_output=True, timeout=_TRIAL_S).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _walls(readable: tuple[str, ...]) -> list[str]:
    found = ["bwrap", "--unshare-all", "--die-with-parent", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"]
    for place in dict.fromkeys((*landlock.places(), *readable)):
        if place in readable and os.path.islink(place):
            found += ["--symlink", "nowhere", place]
        elif os.path.exists(place) and not place.startswith(("/proc", "/dev")):
            found += ["--ro-bind", place, place]
    return [*found, "--chdir", "/"]
