"""An exercise in a real browser, as a learner meets it: unsolved, two wrong answers, a hint, the right one."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pytest

from places import ROOT

pytest.importorskip("nbformat", reason="needs nbformat: pip install '.[course,dev]'")

import mutants
from browser import RUN_S, changed_files, checkout, jupyterlab, wait_for
from gemm_course.exercises import manifest
from gemm_course.notebook import cells as submission
from gemm_course.notebook import locations

(EXERCISE,) = manifest.find("03")
NOTEBOOK = f"exercises/{EXERCISE.name}.ipynb"
MUTANTS = mutants.of(EXERCISE.name)
ENDLESS_S = 30  # a check of its own takes less than 10 s; here browser, server and other tests share the cores

FIND = """
    const panel = window.jupyterapp.shell.currentWidget;
    const notebook = panel.content;
    const find = text => notebook.widgets.findIndex(
        cell => cell.model.type === 'code' && cell.model.sharedModel.getSource().includes(text));
    const frames = count => new Promise(
        done => count ? requestAnimationFrame(() => frames(count - 1).then(done)) : done());
"""
# The hole's cell gets the keyboard, and all of its text is selected, so that what is typed takes its place.
FOCUS = f"""(async () => {{{FIND}
    notebook.deselectAll();
    notebook.activeCellIndex = find('def {EXERCISE.function}(');
    notebook.mode = 'edit';
    const editor = notebook.activeCell.editor, last = editor.lineCount - 1;
    editor.focus();
    editor.setSelection({{start: {{line: 0, column: 0}}, end: {{line: last, column: editor.getLine(last).length}}}});
    return editor.hasFocus();
}})()"""
# The hole's cell and the one that checks it are run; what stands below the latter.
RUN = f"""(async () => {{{FIND}
    let source, cell;
    for (const text of ['def {EXERCISE.function}(', 'check({EXERCISE.function})']) {{
        notebook.activeCellIndex = find(text);
        cell = notebook.activeCell;
        source = source ?? cell.model.sharedModel.getSource();
        await window.jupyterapp.commands.execute('notebook:run-cell');
    }}
    cell.outputArea.node.scrollIntoView({{block: 'end'}});
    await frames(10);
    const kernel = panel.sessionContext.session.kernel;
    const outputs = cell.model.outputs.toJSON();
    return {{
        source, kernel: kernel.id, status: kernel.status,
        text: [...cell.node.querySelectorAll('.jp-OutputArea-output')].map(output => output.innerText).join('\\n'),
        red: cell.node.querySelectorAll('.ansi-red-fg').length,
        bold: [...cell.node.querySelectorAll('.ansi-bold')].map(span => span.innerText),
        errors: outputs.filter(output => output.output_type === 'error').length,
        links: [...cell.node.querySelectorAll('.jp-OutputArea-output a')].map(
            link => decodeURI(link.pathname).split('/').pop()),
        pictures: [...cell.node.querySelectorAll('.jp-OutputArea-output img')]
            .filter(image => image.complete && image.naturalWidth > 0 && image.width > 300).length,
    }};
}})()"""


CALL = """(async () => {
    const panel = window.jupyterapp.shell.currentWidget, notebook = panel.content;
    notebook.activeCellIndex = notebook.widgets.length - 1;
    await window.jupyterapp.commands.execute('notebook:insert-cell-below');
    const cell = notebook.activeCell;
    cell.model.sharedModel.setSource(%s);
    await window.jupyterapp.commands.execute('notebook:run-cell');
    await new Promise(done => setTimeout(done, 500));
    cell.node.scrollIntoView({block: 'end'});
    const outputs = [...cell.node.querySelectorAll('.jp-OutputArea-output')];
    return {text: outputs.map(output => output.innerText).join('\\n'),
            highlighted: cell.node.querySelectorAll('.jp-RenderedMarkdown pre span').length};
})()"""


def answer(page, source=None):
    """Type an answer into the hole's cell, run it and its check; what the page then shows, and after how long."""
    if source is not None:
        assert page.evaluate(FOCUS), "the cell has no keyboard"
        page.command("Input.insertText", text=source)
    started = time.monotonic()
    shown = page.evaluate(RUN)
    shown["seconds"] = time.monotonic() - started
    if source is not None:
        assert shown["source"] == source, "what was typed is not in the cell"
    assert shown["errors"] == 0, shown["text"]
    assert shown["status"] == "idle"
    return shown


def call(page, code):
    """Run code in a new cell at the end; returns its output's text, and the number of highlighted words."""
    return page.evaluate(CALL % json.dumps(code))


def test_an_exercise_is_solved_in_a_browser(page, tmp_path):
    root, state = checkout(tmp_path / "course"), tmp_path / "state"
    kept = state / "grouped-gemm-course" / "progress.json"
    with jupyterlab(root / locations.COPIES, tmp_path, XDG_STATE_HOME=str(state)) as address:
        try:
            page.open(address(NOTEBOOK))
            page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
            wait_for("TODO of the unsolved exercise", lambda: "TODO" in page.evaluate(RUN)["text"], RUN_S)

            unsolved = answer(page)
            assert unsolved["text"].strip().endswith(f"TODO {EXERCISE.id}: {EXERCISE.todo}")
            assert not kept.exists(), "nothing was tried, so nothing is kept"

            wrong = answer(page, MUTANTS["m_and_n_swapped"].source.rstrip())
            assert "writes row" in wrong["text"] or "writes column" in wrong["text"], wrong["text"]
            assert "are M and N exchanged?" in wrong["text"]
            assert wrong["bold"] == ["every tile of C is right", "nothing is written outside of C"]
            assert wrong["red"] == 2, "a mark for each"
            assert wrong["pictures"] == 1, "the picture of the tiles"
            assert 0 < json.loads(kept.read_text())["exercises"][EXERCISE.id]["points"] < EXERCISE.points

            endless = answer(page, MUTANTS["endless"].source.rstrip())
            assert "still running after 4 s" in endless["text"]
            assert "makes no progress" in endless["text"]
            assert endless["pictures"] == 0
            assert endless["seconds"] < ENDLESS_S

            hint = call(page, "hint()")["text"]
            assert hint.startswith(f"Exercise {EXERCISE.id} · {EXERCISE.title}, hint 1 of"), "this notebook's own"
            assert "is shown after a pass" in call(page, f'solution("{EXERCISE.id}")')["text"]

            solution = submission.of_notebook(ROOT / "solutions" / f"{EXERCISE.name}.ipynb", EXERCISE.function)
            right = answer(page, solution)
            assert f"pass: {EXERCISE.points} of {EXERCISE.points} points" in right["text"]
            assert (right["bold"], right["pictures"]) == ([], 0)
            assert json.loads(kept.read_text())["exercises"][EXERCISE.id]["passed"] is True
            assert f"1 of {len(manifest.exercises())} exercises solved." in right["text"]
            assert right["links"] == [f"{each}.ipynb" for each in ["04_static_round_robin"]], "what comes next"
            shown = call(page, f'solution("{EXERCISE.id}")')
            assert f"def {EXERCISE.function}(" in shown["text"]
            assert shown["highlighted"] > 10
            page.evaluate("(async () => { await window.jupyterapp.commands.execute('docmanager:save'); })()")
            assert "exercises solved" in (root / locations.COPIES / NOTEBOOK).read_text(), "it is saved"
            assert changed_files(root) == []
            assert {each["kernel"] for each in (unsolved, wrong, endless, right)} == {right["kernel"]}, (
                "it was restarted"
            )
        except BaseException:
            path = Path(tempfile.gettempdir()) / "grouped-gemm-course-exercise.png"
            page.screenshot(path)
            print(f"The page as it was: {path}")
            raise
