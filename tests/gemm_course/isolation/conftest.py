"""What the tests of Landlock and of seccomp share: one process that has tried every step."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from confined_steps import SCRIPT


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    """What each step said, from a process confined like one that runs answers on a GPU; empty: it succeeded."""
    folder, outside = tmp_path_factory.mktemp("inside"), tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("another student's")
    # Compiling, not interpreting, as in that process; what is compiled is kept in the folder only.
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", SCRIPT, str(folder), str(outside), str(os.getpid())]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(outside / "control"))
        listener.listen()
        child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)
