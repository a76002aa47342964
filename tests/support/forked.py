"""Runs programs in forks of a process that has imported only torch: each program starts a second sooner."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

PRINTS = ("out", "err")
# Before a module: stdout is a pipe whose reader has left.
NO_READER = "import os\nours, theirs = os.pipe()\nos.close(ours)\nos.dup2(theirs, 1)"


def run(code: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Like ``python -c`` in this environment, but torch is imported already."""
    environment = dict(os.environ) if environment is None else environment
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        request = {"code": code, "environment": environment, "folder": os.getcwd(), "prints": folder}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        texts = [Path(folder, name).read_text(errors="replace") for name in PRINTS]
    return subprocess.CompletedProcess(code, status, *texts)


def run_module(name: str, *arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess:
    """Like ``python -m`` in this environment and some more variables, after the lines of code ``before``."""
    start = f"import runpy, sys\nsys.argv[1:] = {arguments!r}\nrunpy.run_module({name!r}, None, '__main__', True)"
    return run(f"{before}\n{start}", {**os.environ, **environment})


@functools.cache
def _server() -> subprocess.Popen:
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    # Buffered, as what users run: then what is printed can fail as late as at the end.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    server = subprocess.Popen([sys.executable, __file__], env=environment, **pipes)
    atexit.register(server.kill)
    return server


def _become(request: dict) -> None:
    """Run a request in the fork, and end the process."""
    for number, name in enumerate(PRINTS, 1):
        os.dup2(os.open(os.path.join(request["prints"], name), os.O_WRONLY | os.O_CREAT), number)
    os.chdir(request["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    status = 1
    try:
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except OSError:  # as when Python ends
        status = 120
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Fork for every line of stdin, and print the exit status of the fork."""
    os.environ.pop("TRITON_INTERPRET", None)
    sys.path[0] = ""  # as for ``python -c``
    import torch  # noqa: F401

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
