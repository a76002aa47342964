"""Start JupyterLab at the first lesson: `python tools/lab.py [PORT]`, in the course's environment."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = "notebooks/00_start_here.ipynb"
HOST = "127.0.0.1"
START_TIMEOUT_S = 60


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


def command(port: int, root: Path = ROOT) -> list[str]:
    """The JupyterLab server on loopback; its token comes from the variable JUPYTER_TOKEN."""
    return [
        sys.executable, "-m", "jupyterlab", "--no-browser",
        f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={root}", "--Application.log_level=ERROR",
        # In containers the user is root, and the server listens on loopback with a token.
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]  # fmt: skip


def wait_until_up(server: subprocess.Popen, port: int, token: str) -> None:
    """Return once the server answers; leave with its exit code when it gives up."""
    request = urllib.request.Request(f"http://{HOST}:{port}/api/status", headers={"Authorization": f"token {token}"})
    deadline = time.monotonic() + START_TIMEOUT_S
    # Without the user's proxy: it knows nothing about this machine's loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"lab: JupyterLab stopped with exit code {server.returncode}; its message is above")
        try:
            with opener.open(request, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    server.terminate()
    raise SystemExit(f"lab: JupyterLab did not answer within {START_TIMEOUT_S} s")


def has_browser() -> bool:
    """Whether there is a graphical browser to open: a display, a configured one, or Windows around WSL."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(display or os.environ.get("BROWSER") or shutil.which("wslview"))


def port_from(argument: str) -> int:
    if not argument.isdigit() or not 1024 <= int(argument) <= 65535:
        raise SystemExit(f"lab: PORT must be a number from 1024 to 65535, got {argument!r}")
    return int(argument)


def main() -> int:
    wanted = port_from(sys.argv[1] if len(sys.argv) > 1 else "8888")
    port = free_port(wanted)
    if port != wanted:
        print(f"Port {wanted} is taken: using {port}.")
    # However this process is asked to stop, it takes the server along; a plain Ctrl-C included, which a shell has
    # switched off for what it started in the background.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    token = secrets.token_hex(16)
    # A terminal opened in Lab finds the `course` command beside this Python.
    search = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    server = subprocess.Popen(command(port), cwd=ROOT, env={**os.environ, "JUPYTER_TOKEN": token, "PATH": search})
    try:
        wait_until_up(server, port, token)
        page = f"lab/tree/{FIRST}" if (ROOT / FIRST).exists() else "lab"
        url = f"http://localhost:{port}/{page}?token={token}"
        print(f"\nJupyterLab is running. Open\n\n    {url}\n\nCtrl-C stops it.", flush=True)
        if not (has_browser() and webbrowser.open(url)):
            print(
                f"From another machine, tunnel first: ssh -L {port}:localhost:{port} <this machine>",
                flush=True,
            )
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        # The terminal's Ctrl-C reached the server too, which then asks whether it is meant; this says yes.
        server.terminate()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()


if __name__ == "__main__":
    sys.exit(main())
