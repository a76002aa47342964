"""`course solution` shows the answer to those who may see it."""

from __future__ import annotations

import pytest

from gemm_course import progress
from gemm_course.cli import app as command
from gemm_course.exercises import manifest
from gemm_course.notebook import cells

(FIRST,) = manifest.find("01")
NAME = f"{FIRST.name}.ipynb"
ANSWER = "torch.searchsorted"  # in the solution only  # in the solution only


@pytest.mark.usefixtures("checkout")
def test_the_solution_comes_after_a_pass(capsys):
    progress.note_result("01", 6, False)
    assert command.main(["solution", "01"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "so far 6 of 10 points" in printed.err
    assert "course solution 01 --give-up" in printed.err
    progress.note_result("01", 10, True)
    assert command.main(["solution", "01"]) == 0
    printed = capsys.readouterr().out
    assert ANSWER in printed
    assert "SOLUTION" not in printed
    compile(printed, "the cell", "exec")
    assert "gave_up" not in progress.load()["01"]


@pytest.mark.usefixtures("checkout")
def test_giving_up_is_kept_and_costs_no_points(capsys):
    assert command.main(["solution", "01", "--give-up"]) == 0
    assert ANSWER in capsys.readouterr().out
    assert progress.load()["01"] == {"points": 0, "passed": False, "hints": 0, "gave_up": True}
    progress.note_result("01", 10, True)
    assert progress.load()["01"]["points"] == 10


def test_what_is_shown_is_an_answer(checkout, capsys):
    """Without the markers the cell is what the notebook's is."""
    command.main(["solution", "01", "--give-up"])
    shown = capsys.readouterr().out.splitlines()[1:]
    cell = cells.of_notebook(checkout / "solutions" / NAME, FIRST.function).splitlines()
    assert shown == [line for line in cell if "### " not in line]
