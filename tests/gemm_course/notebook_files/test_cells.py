"""The part of a cell that is checked."""

from __future__ import annotations

import pytest

from gemm_course.notebook_files import cells
from hand_ins import ANSWER, OFFSETS, hand_in, notebook


@pytest.mark.parametrize(
    ("cell", "runs"),
    [
        (f"{ANSWER}check(describe_groups)\nprint(\n  offs)\nx = 1", f"{ANSWER}\n\n\nx = 1"),
        (f"{ANSWER}result = check(describe_groups)", f"{ANSWER}\n"),
        (f"display(batch)\n{ANSWER}", f"\n{ANSWER}"),
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
