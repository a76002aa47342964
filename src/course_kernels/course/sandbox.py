"""What a learner's code may use: memory, time, no files to write, no other process to touch. Linux only.

Limits hold everywhere; the file and signal rules need Landlock (Linux 5.13, signals 6.12) and are left out where the
kernel lacks it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH, _VERSION_FLAG = 1, 1
# Access rights by the Landlock version that brought them: everything that changes a file or a folder, no reading.
_WRITE = {1: (1 << 1) | sum(1 << bit for bit in range(4, 13)), 2: 1 << 13, 3: 1 << 14}
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_SCOPE_SIGNAL_AND_SOCKETS = 3  # version 6: nothing outside may be signalled


def _libc():
    return ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans of this process's children become its own children, so that it can end them."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit(memory_mb: int, seconds: float, file_mb: int = 0) -> None:
    """Limit this process and its children.

    Args:
        memory_mb: writable memory beyond what the process has now.
        seconds: of CPU time.
        file_mb: size of a file that it writes.
    """
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now = int(status["VmData"].split()[0]) << 10
    data, cpu = now + (memory_mb << 20), int(seconds) + 2
    for kind, value in (
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, file_mb << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 512),
    ):
        with contextlib.suppress(ValueError, OSError):  # an administrator's limit may be lower
            resource.setrlimit(kind, (value, value))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails instead


def confine(writable: str | None = None) -> bool:
    """Forbid this process to change files, and to signal or trace processes outside.

    Args:
        writable: a folder that is exempt.

    Returns:
        Whether the kernel agreed.
    """
    libc = _libc()
    version = libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    if version < 1:
        return False
    rights = sum(right for since, right in _WRITE.items() if since <= version)
    scope = _SCOPE_SIGNAL_AND_SOCKETS if version >= 6 else 0
    attributes = struct.pack("<QQQ", rights, 0, scope)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        for place, allowed in (("/dev/null", rights & (_WRITE_FILE | _TRUNCATE)), (writable, rights)):
            if place is None:
                continue
            folder = os.open(place, os.O_PATH | os.O_CLOEXEC)
            libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("<Qi", allowed, folder), 0)
            os.close(folder)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)
