"""What a check found: its text, its points, its way through JSON, and the exit code of several."""

from __future__ import annotations

import json

import msgspec
import pytest

from gemm_course.judging.results import Property, Result, exit_code


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


def test_below_other_messages_only_what_is_new_is_printed():
    found = result("failed", "fail", "fail")
    found.properties[0].message = "tile 3 is lost\n(inputs)"
    found.properties[1].message, found.properties[1].shown = "tile 4 is lost\n(inputs)", "tile 4 is lost"
    assert [line.strip() for line in found.text().splitlines() if line.startswith("      ")] == [
        "tile 3 is lost", "(inputs)", "tile 4 is lost",
    ]  # fmt: skip


def test_the_first_failure_has_a_reason_of_its_own():
    found = result("failed", "pass", "fail", "fail", "fail", "fail")
    for each, message in zip(found.properties, ["", "", "row 3 is wrong", "too slow", "too long"]):
        each.message = message
    found.properties[2].follows = True
    assert found.first_failure.message == "too slow"
    found.properties[2].follows = False
    assert found.first_failure.message == "row 3 is wrong"
    assert result("passed", "pass").first_failure is None


def test_what_was_not_begun_or_not_checked_is_told_apart():
    assert result("todo", message="TODO 03: write it").text() == "Exercise 03 · Masks\nTODO 03: write it"
    assert result("unchecked", "skip", "skip", message="no numpy").text().splitlines() == [
        "Exercise 03 · Masks", "no numpy", "", "  – so none of its 2 properties could be checked",
        "not checked: 0 of 10 points so far",
    ]  # fmt: skip


def test_each_line_has_its_kind():
    found = result("failed", "pass", "fail", message="it crashed\nhere", printed="a")
    found.properties[1].message = "row 3"
    assert [kind for kind, _ in found.lines()] == [
        "title", "message", "message", "", "pass", "fail", "reason", "total", "", "printed", "printed",
    ]  # fmt: skip
    assert [kind for kind, _ in result("todo", message="TODO 03").lines()] == ["title", "message"]


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
