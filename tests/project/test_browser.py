"""A lesson, top to bottom, in a real browser, as `make lab` opens it: JupyterLab and Chromium over DevTools."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

import lab
from browser import IS_IDLE, RUN_S, changed_files, checkout, jupyterlab, wait_for
from gemm_course.notebook import locations
from places import ROOT

nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install '.[course,dev]'")

NOTEBOOK = ROOT / lab.FIRST
GUESS = "notebooks/02_triton_in_fifteen_minutes.ipynb"  # the first lesson with a text to guess

# The state of JupyterLab when a learner opens it.
OPENED = """(() => {
    const panel = window.jupyterapp.shell.currentWidget;
    return {unsaved: panel.context.model.dirty, numbers: document.querySelectorAll('.cm-lineNumbers').length,
            popups: document.querySelectorAll('.Toastify__toast, .jp-Dialog').length,
            closed: window.jupyterapp.shell.leftCollapsed};
})()"""
# How the lines of a printed table are broken.
LINES = """getComputedStyle(document.querySelector(
    '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stdout"] pre')).whiteSpace"""
# Opens a terminal, and writes the path of `course` there to the file "where".
TERMINAL = """(async () => {
    const widget = await window.jupyterapp.commands.execute('terminal:create-new');
    await widget.content.ready;
    widget.content.session.send({type: 'stdin', content: ['command -v course > where\\r']});
})()"""
SAVE = """(async () => {
    const panels = [...window.jupyterapp.shell.widgets('main')];
    await panels.find(widget => widget.context?.path.endsWith('.ipynb')).context.save();
})()"""
# What the first cell with a hidden output shows before and after a click, and the first line of that output.
HIDDEN = """(async () => {
    const panel = await window.jupyterapp.commands.execute('docmanager:open', {path: '%s'});
    await panel.context.ready;
    const cell = panel.content.widgets.find(each => each.outputHidden);
    const placeholder = () => cell.node.querySelector('.jp-OutputPlaceholder');
    const shown = () => cell.node.innerText;
    const until = async condition => { while (!condition()) await new Promise(done => setTimeout(done, 50)); };
    await until(placeholder);
    const before = shown(), [answer] = cell.model.outputs.get(0).toJSON().text.split('\\n');
    placeholder().click();
    await until(() => !placeholder());
    return {answer, before, after: shown()};
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


# What the server and a kernel say when the test ends them: a kernel that is slow to end sees that its server is gone.
ENDING = ("signal 15", "Parent appears to have exited")


def stored_cells():
    """What each code cell of the stored notebook shows: source, whether an error is expected, pictures."""
    notebook = nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source.strip():
            pictures = sum("image/png" in output.get("data", {}) for output in cell.outputs)
            yield cell.source, "raises-exception" in cell.metadata.get("tags", []), pictures


def test_first_lesson_runs_in_a_browser_and_the_checkout_stays_as_it_was(page, tmp_path):
    root, log = checkout(tmp_path / "course"), tmp_path / "log"
    mine = root / locations.COPIES
    before = (mine / lab.FIRST).read_bytes()
    lab.first_layout(mine)
    with log.open("w") as stderr, jupyterlab(mine, tmp_path, stderr) as address:
        run_first_lesson(page, address(lab.FIRST))
        page.evaluate(SAVE)
        page.evaluate(TERMINAL)
        where = wait_for("answer of a terminal", lambda: (mine / "where").exists() and (mine / "where").read_text(), 30)
        assert where.strip() == str(Path(sys.executable).with_name("course"))
        guess = page.evaluate(HIDDEN % GUESS)
        assert guess["answer"] not in guess["before"], "it is given away before the click"
        assert guess["answer"] in guess["after"]
    assert (mine / lab.FIRST).read_bytes() != before, "it was saved"
    assert changed_files(root) == []
    said = [line for line in log.read_text().splitlines() if not any(each in line for each in ENDING)]
    assert said == [], "in the learner's terminal"


def run_first_lesson(page, address):
    try:
        page.open(address)
        opened = page.evaluate(OPENED)
        assert not opened["unsaved"], "nothing was done yet"
        assert opened["numbers"] > 0, "messages name lines"
        assert opened["popups"] == 0
        assert opened["closed"], "the list of files takes the lesson's place"
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
        assert page.evaluate(LINES) == "pre", "lines of a table are broken where they do not fit"
    except BaseException:
        path = Path(tempfile.gettempdir()) / "grouped-gemm-course-browser.png"
        page.screenshot(path)
        print(f"The page as it was: {path}")
        raise
