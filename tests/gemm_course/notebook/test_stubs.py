"""The last lines of an exercise's notebook, and a solution without its markers."""

from __future__ import annotations

import copy

import pytest

from gemm_course.exercises import manifest
from gemm_course.notebook import stubs
from places import ROOT

(MASKS,) = manifest.find("03")
SOLUTION = stubs.read(ROOT / "solutions" / f"{MASKS.name}.ipynb")


@pytest.mark.parametrize("line", ["Stuck? Ask.\n", "Stuck?"])
def test_the_line_on_hints_is_written_in_one_place(line):
    draft = copy.deepcopy(SOLUTION)
    last = draft["cells"][-1]
    last["source"] = [f"Well done.\n\n{line}"] + (["\nNext: [04](04.ipynb)"] if line.endswith("\n") else [])
    assert any("the line on hints" in each for each in stubs.problems(draft, MASKS))
    stubs.write_help_line(draft, MASKS)
    assert stubs.problems(draft, MASKS) == []
    assert 'hint("03")' in stubs.help_line(MASKS)
    assert stubs.next_step(draft) == ("Next: [04](04.ipynb)" if line.endswith("\n") else "")


def test_a_notebook_that_imports_no_help_cannot_be_handed_out():
    draft = copy.deepcopy(SOLUTION)
    for cell in draft["cells"]:
        cell["source"] = "".join(cell["source"]).replace(", hint, solution", "").splitlines(keepends=True)
    assert stubs.problems(draft, MASKS) == ["no cell has `from gemm_course import check, hint, solution`"]


def test_the_next_step_is_at_an_exercises_end():
    found = {
        each.id: stubs.next_step(stubs.read(ROOT / "exercises" / f"{each.name}.ipynb")) for each in manifest.exercises()
    }
    assert found["01"].startswith("Next: [02 ")
    assert found["11a"].count("](") == 2, "two links, on two lines"
    assert stubs.next_step(None) == ""


@pytest.mark.parametrize("each", manifest.exercises(), ids=lambda each: each.id)
def test_a_stored_check_reports_the_hole_and_a_solutions_reports_a_pass(each):
    for folder, words in (("exercises", f"TODO {each.id}: {each.todo}"), ("solutions", "pass: ")):
        notebook = stubs.read(ROOT / folder / f"{each.name}.ipynb")
        (cell,) = (one for one in notebook["cells"] if one["metadata"].get("nbgrader", {}).get("grade_id") == "check")
        shown = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        assert words in shown.replace("\n", " "), shown


def test_lines_of_a_solution_are_marked_and_its_markers_gone():
    source = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n# end"
    assert stubs.solution_lines(source) == [("def f():", False), ("    return 1", True), ("# end", False)]
