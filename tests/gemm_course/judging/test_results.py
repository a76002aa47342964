"""What a check found: its text, its points, its way through JSON, and the exit code of several."""

from __future__ import annotations

import json

import msgspec
import pytest

from gemm_course.judging.results import REASON_BELOW, Property, Result, exit_code


def result(status, *statuses, **parts):
    properties = [Property(f"p{i}", f"it holds {i}", 5, each) for i, each in enumerate(statuses)]
    return Result("03", "Masks", status, properties, max_points=5 * len(statuses), **parts)


def test_a_pass_shows_every_property():
    found = result("passed", "pass", "pass")
    assert found.text() == "Exercise 03 · Masks\n  ✓ it holds 0\n  ✓ it holds 1\npass: 10 of 10 points"
    assert (found.passed, found.points) == (True, 10)
    assert repr(found) == "<exercise 03: passed, 10 of 10 points>"


def test_a_failure_has_its_message_below_and_what_was_printed_last():
    found = result("failed", "pass", "fail", "skip", printed=f"a\n{'b' * 200}")
    found.properties[1].message = "row 3\nis wrong"
    assert found.text().splitlines() == [
        "Exercise 03 · Masks", "  ✓ it holds 0", "  ✗ it holds 1", "      row 3", "      is wrong", "  – it holds 2",
        "not yet: 5 of 15 points", "", "your code printed:", "  | a", f"  | {'b' * 96}",
    ]  # fmt: skip
    assert (found.passed, found.points) == (False, 5)


def test_a_cause_and_its_inputs_are_printed_once():
    found = result("failed", "fail", "fail", "fail", "pass", "fail")
    found.properties[0].message = "tile 3 is lost:\nK is taken for N\n(inputs)"
    found.properties[1].message = "tile 4 has another's turn:\nK is taken for N\n(inputs)"
    found.properties[2].message = "tile 3 is lost:\n(inputs)"
    found.properties[4].message = "no program\n(other inputs)"
    assert [line.strip() for line in found.text().splitlines() if line.startswith("      ")] == [
        "tile 3 is lost:", "K is taken for N", "(inputs)", "tile 4 has another's turn: for the reason above",
        "wrong for the reason above", "no program", "(other inputs)",
    ]  # fmt: skip
    found.message = "no program"
    assert found.text().count("no program") == 1


def test_a_repeated_reason_with_other_inputs_keeps_a_reason():
    found = result("failed", "fail", "fail")
    found.properties[0].message = "`group` must be integers\n(sizes [2, 3])"
    found.properties[1].message = "`group` must be integers\n(sizes [4, 3, 2])"
    assert [line.strip() for line in found.text().splitlines() if line.startswith("      ")] == [
        "`group` must be integers", "(sizes [2, 3])", "wrong for the reason above", "(sizes [4, 3, 2])",
    ]  # fmt: skip


def test_of_a_failure_the_first_reason_is_told():
    found = result("failed", "pass", "fail", "fail", "fail", "fail")
    messages = ["", "", f"row 3 is wrong\n{REASON_BELOW}", "too slow", "too long"]
    for each, message in zip(found.properties, messages):
        each.message = message
    assert found.first_failure.message == "too slow"
    found.properties[2].message = "row 3 is wrong"
    assert found.first_failure.message == "row 3 is wrong"
    assert result("passed", "pass").first_failure is None


def test_what_was_not_begun_or_not_checked_is_told_apart():
    assert result("todo", message="TODO 03: write it").text() == "Exercise 03 · Masks\nTODO 03: write it"
    assert result("unchecked", "skip", "skip", message="no numpy").text().splitlines() == [
        "Exercise 03 · Masks", "no numpy", "", "  – so none of its 2 properties could be checked",
        "not checked: 0 of 10 points so far",
    ]  # fmt: skip


def test_it_travels_as_json():
    found = result("failed", "fail", message="x", panels=[{"title": "C", "shape": [1, 2]}], seed=7)
    assert Result.from_dict(json.loads(json.dumps(found.as_dict()))) == found
    with pytest.raises(msgspec.ValidationError, match=r"Expected `str`, got `int` - at `\$.status`"):
        Result.from_dict({**found.as_dict(), "status": 3})
    with pytest.raises(msgspec.ValidationError, match=r"at `\$.properties\[0\]"):
        Result.from_dict({**found.as_dict(), "properties": [{"name": "p"}]})


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], 0), (["passed", "passed"], 0), (["passed", "failed"], 1), (["todo"], 1), (["passed", None], 1),
        (["unchecked", "passed"], 3), (["failed", "unchecked", None], 3),
    ],
)  # fmt: skip
def test_the_exit_code_of_several(statuses, code):
    assert exit_code(each and result(each) for each in statuses) == code
