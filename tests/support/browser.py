"""A real browser for tests: JupyterLab on loopback, Chromium over DevTools."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from base64 import b64decode
from pathlib import Path

import pytest

import lab
from gemm_course.notebook import copies
from places import ROOT

# A page that nobody looks at has no focus, and then JupyterLab has no current widget: activate the notebook.
IS_IDLE = """(() => {
    const panels = [...(window.jupyterapp?.shell.widgets('main') ?? [])];
    const panel = panels.find(widget => widget.context?.path.endsWith('.ipynb'));
    if (panel) window.jupyterapp.shell.activateById(panel.id);
    return panel === window.jupyterapp?.shell.currentWidget &&
        panel?.sessionContext?.session?.kernel?.status === 'idle' &&
        panel.content.widgets.length > 0 && panel.content.widgets.length === panel.content.model?.cells.length;
})()"""


START_S, RUN_S = 60, 180


TOKEN = "a-token-for-this-test"


# Debian's `chromium` is a shell script around the first one; either will do.
BROWSERS = (
    "/usr/lib/chromium/chromium",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)


# No virtual scrolling, so that the page has every output. No autosave: only the tests save.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "docmanager-extension/plugin": {"autosave": False},
}


def find_browser():
    found = [path for path in map(shutil.which, BROWSERS) if path]
    return found[0] if found else None


def wait_for(what, condition, seconds, alive=lambda: True):
    """The first true value of `condition()`; fails with `what` when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not alive():
            pytest.fail(f"it stopped while waiting for {what}")
        value = condition()
        if value:
            return value
        time.sleep(0.2)
    pytest.fail(f"no {what} after {seconds} s")


class Page:
    """One page of a headless Chromium, driven over the DevTools protocol."""

    def __init__(self, browser, profile):
        self.process = subprocess.Popen(
            [
                browser, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}",
                "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check",
                "--no-proxy-server", "--window-size=1400,1000", "about:blank",
                # Chromium's own sandbox refuses to start for root, as in a container.
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.socket, self.ids = None, itertools.count(1)
        self.events = []  # of the domains that a test enables
        try:
            self._connect(Path(profile) / "DevToolsActivePort")
        except BaseException:
            self.close()
            raise

    def _connect(self, port_file):
        import websocket

        def port():
            return port_file.exists() and port_file.read_text().split("\n")[0]

        number = wait_for("DevTools port", port, START_S, lambda: self.process.poll() is None)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{number}/json/list", timeout=10) as answer:
            pages = [target for target in json.load(answer) if target["type"] == "page"]
        self.socket = websocket.create_connection(pages[0]["webSocketDebuggerUrl"], suppress_origin=True, timeout=RUN_S)

    def command(self, method, **parameters):
        number = next(self.ids)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:  # events come in between
            answer = json.loads(self.socket.recv())
            if "method" in answer:
                self.events.append(answer)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def evaluate(self, expression):
        """The JSON value of a JavaScript expression, awaited; a page in the middle of loading gives None."""
        answer = self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"in the page: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def open(self, address):
        """Open a notebook and wait for its kernel."""
        self.command("Emulation.setFocusEmulationEnabled", enabled=True)
        self.command("Page.navigate", url=address)
        wait_for("idle kernel in JupyterLab", lambda: self.evaluate(IS_IDLE), START_S)

    def screenshot(self, path):
        path.write_bytes(b64decode(self.command("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        if self.socket is not None:
            self.socket.close()
        stop(self.process)


def stop(process):
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def checkout(place):
    """A checkout under git with the course's notebooks, and the working copies that `make lab` makes of them."""
    for folder in ("notebooks", "exercises", "solutions", "docs"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns(".*", "*backup*", "source"))
    shutil.copy(ROOT / ".gitignore", place)
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=place, check=True)
    copies.update(place)
    return place


def changed_files(place):
    """The files that git reports as changed or new since `checkout`."""
    command = ["git", "status", "--porcelain"]
    status = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True).stdout
    return [line for line in status.splitlines() if not line.startswith("A  ")]


@contextlib.contextmanager
def jupyterlab(folder, own, stderr=None, **environment):
    """A real JupyterLab over a folder; yields a function from a notebook in it to the address that opens it.

    Args:
        folder: its root.
        own: an empty folder for its settings and running servers; its workspaces are in `folder`.
        stderr: a file for the messages that it writes into the learner's terminal.
        environment: variables for it and its kernels.
    """
    for name, values in SETTINGS.items():
        file = own / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    # The user's settings and running servers stay out of it, and it out of them.
    environment.update(
        JUPYTERLAB_SETTINGS_DIR=str(own / "settings"),
        JUPYTER_RUNTIME_DIR=str(own / "runtime"),
        JUPYTER_TOKEN=TOKEN,
    )
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    port, _ = lab.free_port(18888 + 100 * worker)  # other workers look for one at the same time
    command = [*lab.command(port, folder), "--expose-app-in-browser"]
    server = subprocess.Popen(command, cwd=folder, env={**lab.environment(), **environment}, stderr=stderr)
    try:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/status", headers={"Authorization": f"token {TOKEN}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def answers():
            with contextlib.suppress(OSError), opener.open(request, timeout=2):
                return True

        wait_for("answer of JupyterLab", answers, START_S, lambda: server.poll() is None)
        yield lambda notebook: f"http://127.0.0.1:{port}/lab/tree/{notebook}?token={TOKEN}"
    finally:
        stop(server)


@pytest.fixture
def page():
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium or Chrome found: install Debian's `chromium` (apt-get install chromium)")
    # Not pytest's folder: a path that deep may be too long for the sockets that Chromium puts there.
    with tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True) as profile:
        opened = Page(browser, profile)
        try:
            yield opened
        finally:
            opened.close()
