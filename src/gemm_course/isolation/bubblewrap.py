"""A second wall around the processes that run answers: Bubblewrap, where it is installed and the system allows it.

Landlock and seccomp are what the kernel refuses a process. Namespaces are what the process does not have: no home and
no other user's file, no process but its own, no network. Whatever got past one wall still meets the other.

With a GPU it is left out: which files and calls a driver needs in there has not been tried.
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
    """What to put in front of a command so that it runs inside; empty where that is not possible.

    Args:
        writable: the folder in which it may do everything, if there is one.
        readable: places that it may read, beside those of the system, of Python and of our packages. Of a link it sees
            that it is one.
    """
    if not works():
        return []
    return [*_walls(tuple(readable)), *(("--bind", writable, writable) if writable else ()), "--"]


@functools.cache
def works() -> bool:
    """Whether Bubblewrap is there and may make namespaces: tried once, in some milliseconds."""
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
