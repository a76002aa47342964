"""The part of a cell that is checked."""

from __future__ import annotations

import functools
import linecache

import pytest

from gemm_course.notebook import cells
from hand_ins import ANSWER, OFFSETS, hand_in, notebook


@pytest.mark.parametrize(
    ("cell", "runs"),
    [
        (f"{ANSWER}check(describe_groups)\nprint(\n  offs)\nx = 1", f"{ANSWER}\n\n\nx = 1"),
        (f"{ANSWER}result = check(describe_groups)", f"{ANSWER}\n"),
        (f"display(batch)\n{ANSWER}", f"\n{ANSWER}"),
        (f"%%time\n{ANSWER}", f"\n{ANSWER}"),
        (f"%%timeit -n 1\n{ANSWER}print(1)", f"\n{ANSWER}\n"),
        (f"{ANSWER}%timeit -n 3 describe_groups(sizes, 7)\nt = %timeit -o f()\n%time f()", f"{ANSWER}\n\n"),
        (f"{ANSWER}get_ipython().run_line_magic('timeit', 'f()')\n", f"{ANSWER}\n"),
        (f"{ANSWER}%run other.py\n%timer", None),
        (f"{ANSWER}x = 1; print(x)", None),
        (f"def check(x):\n    return x\nx = check(1)\n{ANSWER}", None),
        (f"{ANSWER}x = sum([1])\nprint.x()\nif x:\n    print(x)", None),
        (f"{ANSWER}\x0c\nprint(offs)", None),
        (f"{ANSWER})\nprint(offs)", None),
    ],
)
def test_what_only_looks_at_an_answer_does_not_run(tmp_path, cell, runs):
    hand_in(tmp_path, {"01_offsets.ipynb": notebook(cell)})
    found = cells.of_notebook(tmp_path / "01_offsets.ipynb", OFFSETS.function)
    assert found.splitlines() == (cell if runs is None else runs).splitlines()


@pytest.mark.parametrize("cell", [f"%%time\n{ANSWER}", f"\n%%time\n{ANSWER}", f"{ANSWER}%timeit -n1 -r1 0\n"])
def test_a_function_in_a_timed_cell_is_found(cell):
    """As IPython itself compiles the cell."""
    InteractiveShell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    shell = InteractiveShell()
    try:
        for each in (f"%%time\n{ANSWER}    # an older one", cell, "x = 3"):
            shell.run_cell(each, store_history=True).raise_error()
        ran = [line for _, _, line in shell.history_manager.get_range(raw=True)]
        found = cells.of_function(shell.user_ns[OFFSETS.function], OFFSETS.function, ran)
        assert found.strip() == ANSWER.strip()
    finally:
        shell.history_manager.end_session()


def test_a_wrapped_function_is_found_in_its_cell_not_in_the_wrapper_s_module(monkeypatch):
    source = "@wrapped\ndef answer(x):\n    return x + 1\n"

    def wrapped(function):
        return functools.wraps(function)(lambda *args: function(*args))  # as cute.jit does

    monkeypatch.setitem(linecache.cache, "<cell>", (len(source), None, source.splitlines(True), "<cell>"))
    names = {"wrapped": wrapped}
    exec(compile(source, "<cell>", "exec"), names)
    assert cells.of_function(names["answer"], "answer") == source
