"""A notebook, top to bottom, in a real browser: JupyterLab on loopback, Chromium over DevTools."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64decode
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install '.[course,dev]'")

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "00_start_here.ipynb"
sys.path.insert(0, str(ROOT / "tools"))

import lab  # noqa: E402

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

# No virtual scrolling, so that every output is in the page; no saving, so that the notebook stays as it is.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "docmanager-extension/plugin": {"autosave": False},
}

# A page that nobody looks at has no focus, and then JupyterLab has no current widget: activate the notebook.
IS_IDLE = """(() => {
    const panels = [...(window.jupyterapp?.shell.widgets('main') ?? [])];
    const panel = panels.find(widget => widget.context?.path.endsWith('.ipynb'));
    if (panel) window.jupyterapp.shell.activateById(panel.id);
    return panel === window.jupyterapp?.shell.currentWidget &&
        panel?.sessionContext?.session?.kernel?.status === 'idle' && panel.content.widgets.length > 0;
})()"""
RUN_ALL = """(async () => {
    await window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs');
    const left = document.querySelectorAll('.jp-OutputArea-output').length;
    await window.jupyterapp.commands.execute('notebook:run-all-cells');
    return left;
})()"""
# The model says what was executed (an error looks like stderr in the page), the page which pictures are seen.
RESULT = """(() => {
    const cells = window.jupyterapp.shell.currentWidget.content.widgets.filter(
        cell => cell.model.type === 'code' && cell.model.sharedModel.getSource().trim() !== '');
    return cells.map(cell => ({
        source: cell.model.sharedModel.getSource(),
        count: cell.model.executionCount,
        outputs: cell.model.outputs.toJSON().map(output => output.output_type),
        pictures: [...cell.node.querySelectorAll('.jp-OutputArea-output img')]
            .filter(image => image.complete && image.naturalWidth > 0 && image.width > 0).length,
    }));
})()"""


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


@contextlib.contextmanager
def jupyterlab(folder, own, **environment):
    """A real JupyterLab over a folder; yields a function from a notebook in it to the address that opens it.

    Args:
        folder: its root.
        own: an empty folder for its settings, workspaces and running servers.
        environment: variables for it and its kernels.
    """
    for name, values in SETTINGS.items():
        file = own / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    # The user's settings, workspaces and running servers stay out of it, and it out of them.
    environment.update(
        JUPYTERLAB_SETTINGS_DIR=str(own / "settings"),
        JUPYTERLAB_WORKSPACES_DIR=str(own / "workspaces"),
        JUPYTER_RUNTIME_DIR=str(own / "runtime"),
        JUPYTER_TOKEN=TOKEN,
    )
    port = lab.free_port(18888)
    command = [*lab.command(port, folder), "--expose-app-in-browser"]
    server = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment})
    try:
        lab.wait_until_up(server, port, TOKEN)
        yield lambda notebook: f"http://127.0.0.1:{port}/lab/tree/{notebook}?token={TOKEN}"
    finally:
        stop(server)


@pytest.fixture
def jupyter(tmp_path):
    """The address that opens NOTEBOOK in a JupyterLab over the repository."""
    with jupyterlab(ROOT, tmp_path) as address:
        yield address(NOTEBOOK.relative_to(ROOT))


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


def stored_cells():
    """What each code cell of the stored notebook shows: source, whether an error is expected, pictures."""
    notebook = nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source.strip():
            pictures = sum("image/png" in output.get("data", {}) for output in cell.outputs)
            yield cell.source, "raises-exception" in cell.metadata.get("tags", []), pictures


def test_first_lesson_runs_in_a_browser(page, jupyter):
    before = NOTEBOOK.read_bytes()
    try:
        page.open(jupyter)
        assert page.evaluate(RUN_ALL) == 0, "outputs were left from before the run"
        expected = list(stored_cells())

        def settled():
            # "Run all" can come back while cells are still queued: it does not wait past one that may fail.
            shown = page.evaluate(RESULT)
            done = all(c["count"] is not None for c in shown)
            return shown if done and sum(c["pictures"] for c in shown) >= sum(p for _, _, p in expected) else None

        wait_for("run of every cell, with its figures", settled, RUN_S)
        wait_for("idle kernel at the end", lambda: page.evaluate(IS_IDLE), RUN_S)
        shown = page.evaluate(RESULT)
        assert [cell["source"] for cell in shown] == [source for source, _, _ in expected]
        assert [cell["count"] for cell in shown] == list(range(1, len(shown) + 1)), "cells not run, or not in order"
        for cell, (source, may_fail, pictures) in zip(shown, expected, strict=True):
            assert ("error" in cell["outputs"]) == may_fail, source
            assert cell["pictures"] == pictures, source
        assert sum(pictures for _, _, pictures in expected) > 0, "the lesson has no figure to see"
    except BaseException:
        path = Path(tempfile.gettempdir()) / "grouped-gemm-course-browser.png"
        page.screenshot(path)
        print(f"The page as it was: {path}")
        raise
    assert NOTEBOOK.read_bytes() == before, "the run must not change the stored notebook"
