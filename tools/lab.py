"""Start JupyterLab at the first lesson, on the learner's working copies, in the course's environment.

python tools/lab.py [PORT]
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path

from gemm_course.notebook import copies, locations

ROOT = Path(__file__).resolve().parents[1]
FIRST = "notebooks/00_start_here.ipynb"
HOST = "127.0.0.1"
WORKSPACES = ".workspaces"  # JupyterLab's layouts, in the folder of the working copies
SETTINGS = Path(__file__).with_name("jupyterlab")  # defaults for JupyterLab; a reader's own settings win


def claim(port: int) -> socket.socket | None:
    """Reserve a port until this process and its successor end. Returns None if another `lab` has reserved it.

    The server takes seconds to start. Without the reservation, a second `make lab` would find the port free.
    """
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0grouped-gemm-course-{port}")  # a name without a file, where ports are: in the network namespace
    except OSError:
        mark.close()
        return None
    mark.set_inheritable(True)
    return mark


def free_port(first: int, tries: int = 100) -> tuple[int, socket.socket]:
    """The first port from `first` on that is neither in use nor reserved, and the reservation."""
    for port in range(first, min(first + tries, 65536)):
        mark = claim(port)
        if mark is None:
            continue
        with socket.socket() as probe:
            # As the server will bind it: a port in TIME_WAIT from a moment ago is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                mark.close()
                continue
            return port, mark
    raise SystemExit(f"lab: no free port from {first} on; name another one: make lab PORT=9000")


def shell() -> list[str]:
    """The command that a terminal in JupyterLab runs: the user's shell, with `course` on its PATH.

    JupyterLab's own choice may be a login shell, and then /etc/profile sets PATH anew.
    """
    found = os.environ.get("SHELL", "")
    name = os.path.basename(found)
    if not shutil.which(found) or name not in ("bash", "fish", "zsh"):
        found, name = (shutil.which("bash"), "bash") if shutil.which("bash") else ("/bin/sh", "sh")
    after_its_settings = {
        "bash": ["--rcfile", str(SETTINGS / "bashrc")],
        "fish": ["--init-command", "set --global --export --prepend PATH $COURSE_BIN"],
    }
    return [found, *after_its_settings.get(name, [])]


def command(port: int, root: Path = ROOT / locations.COPIES, open_browser: bool = False) -> list[str]:
    """The JupyterLab server on loopback: it prints its address, and stops at one Ctrl-C without asking."""
    return [
        sys.executable, "-m", "jupyterlab", f"--LabApp.default_url=/lab/tree/{FIRST}",
        f"--LabApp.app_settings_dir={SETTINGS}", "--LabApp.news_url=None",
        # No option sets the folder of custom.css, which is the reader's own by default.
        "--LabApp.custom_css=True",
        f"--ServerApp.tornado_settings={json.dumps({'static_custom_path': [str(SETTINGS)]})}",
        f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        # By default all clones of an account share one, and each opens the tabs of the others.
        f"--LabApp.workspaces_dir={root / WORKSPACES}",
        f"--ServerApp.root_dir={root}", f"--ServerApp.open_browser={open_browser}",
        f"--ServerApp.terminado_settings={json.dumps({'shell_command': shell()})}",
        # A browser of Windows, or one in a snap, could not read the file that the server would have it open.
        "--ServerApp.use_redirect_file=False", "--ServerApp.answer_yes=True", "--Application.log_level=ERROR",
        # Otherwise each kernel warns, in the learner's terminal, that its messages on loopback are not encrypted.
        *(["--KernelManager.transport_encryption=auto"] if can_encrypt() else []),
        # In containers the user is root, and the server listens on loopback with a token.
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]  # fmt: skip


def first_layout(root: Path) -> None:
    """Have JupyterLab start with its side bar closed, where it has no layout of the reader's yet.

    In a window 800 pixels wide, the list of files would leave less than half of it to the lesson. Its symbol on the
    left opens it.
    """
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    if (root / WORKSPACES).exists():
        return
    closed = {"collapsed": True, "visible": True, "widgets": []}
    layout = {"main": {"dock": None}, "left": closed, "right": closed, "relativeSizes": [0, 1, 0]}
    workspace = {"data": {"layout-restorer:data": layout}, "metadata": {"id": "default"}}
    WorkspacesManager(root / WORKSPACES).save("default", json.dumps(workspace))


def can_encrypt() -> bool:
    """Whether this Jupyter can encrypt its messages to kernels. Older versions cannot, and do not warn."""
    import zmq
    from jupyter_client import KernelManager

    return "transport_encryption" in KernelManager.class_trait_names() and zmq.has("curve")


def environment() -> dict[str, str]:
    """For the server and its terminals: the `course` command beside this Python comes first."""
    folder = os.path.dirname(sys.executable)
    search = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": search, "COURSE_BIN": folder}


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
    port, _mark = free_port(wanted)  # open until the server ends
    if port != wanted:
        print(f"Port {wanted} is taken: using {port}.")
    try:
        for line in copies.update(ROOT):
            print(line)
    except OSError as error:
        raise SystemExit(f"lab: the working copies in {ROOT / locations.COPIES} cannot be written: {error}") from None
    first_layout(ROOT / locations.COPIES)
    print("Starting JupyterLab; its address follows. Ctrl-C stops it.")
    if not has_browser():
        print(f"From another machine, tunnel first: ssh -L {port}:localhost:{port} <this machine>")
    sys.stdout.flush()
    # Replaced, not called: signals and the exit code are the server's.
    os.execve(sys.executable, command(port, open_browser=has_browser()), environment())


if __name__ == "__main__":
    main()
