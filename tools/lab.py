"""Start JupyterLab at the first lesson: `python tools/lab.py [PORT]`, in the course's environment."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = "notebooks/00_start_here.ipynb"
HOST = "127.0.0.1"


def free_port(first: int, tries: int = 100) -> int:
    """The first port from `first` on that nobody listens on."""
    for port in range(first, min(first + tries, 65536)):
        with socket.socket() as probe:
            # As the server will bind it: a port in TIME_WAIT from a moment ago is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise SystemExit(f"lab: no free port from {first} on; name another one: make lab PORT=9000")


def command(port: int, root: Path = ROOT, open_browser: bool = False) -> list[str]:
    """The JupyterLab server on loopback: it prints its address, and stops at one Ctrl-C without asking."""
    return [
        sys.executable, "-m", "jupyterlab", f"--LabApp.default_url=/lab/tree/{FIRST}",
        f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={root}", f"--ServerApp.open_browser={open_browser}",
        # A browser of Windows, or one in a snap, could not read the file that the server would have it open.
        "--ServerApp.use_redirect_file=False", "--ServerApp.answer_yes=True", "--Application.log_level=ERROR",
        # In containers the user is root, and the server listens on loopback with a token.
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]  # fmt: skip


def has_browser() -> bool:
    """Whether there is a graphical browser to open: a display, a configured one, or Windows around WSL."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(display or os.environ.get("BROWSER") or shutil.which("wslview"))


def port_from(argument: str) -> int:
    if not argument.isdigit() or not 1024 <= int(argument) <= 65535:
        raise SystemExit(f"lab: PORT must be a number from 1024 to 65535, got {argument!r}")
    return int(argument)


def main() -> None:
    wanted = port_from(sys.argv[1] if len(sys.argv) > 1 else "8888")
    port = free_port(wanted)
    if port != wanted:
        print(f"Port {wanted} is taken: using {port}.")
    print("Starting JupyterLab; its address follows. Ctrl-C stops it.")
    if not has_browser():
        print(f"From another machine, tunnel first: ssh -L {port}:localhost:{port} <this machine>")
    sys.stdout.flush()
    # A terminal opened in Lab finds the `course` command beside this Python.
    search = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    # Replaced, not called: signals and the exit code are the server's.
    os.execve(sys.executable, command(port, open_browser=has_browser()), {**os.environ, "PATH": search})


if __name__ == "__main__":
    main()
