"""The feedback files for students, and the report of identical answers."""

from __future__ import annotations

import pytest

from gemm_course.grading import feedback, grades
from gemm_course.grading.grades import NO_PENALTY, Grade, Penalty
from gemm_course.judging.results import Result
from hand_ins import BOTH, MASKS, OFFSETS, PREFIX, RIGHT, TODO, discovered, hand_in, notebook, outcome


def test_all_that_the_checks_say_is_handed_back(tmp_path):
    result = Result.from_dict(outcome(4, failure="line 3: the ends are sizes\n    code"))
    made = [Grade("ann", OFFSETS, 4, "failed", "short", result, "the best of 2 versions: a.ipynb"),
            Grade("ann", MASKS, 0, grades.MISSING, "nothing was handed in"),
            Grade("bob", OFFSETS, 10, "passed", "", Result.from_dict(outcome()))]  # fmt: skip
    feedback.write(tmp_path, made, Penalty(10, {"ann": 1}))
    text = (tmp_path / "ann" / "feedback.txt").read_text()
    assert text.startswith("ann: 3.6 of 20 points (0 of 2 passed; 1 day late: 10 % of 4 points taken off)\n")
    assert "\n".join(map(str.strip, result.text().splitlines())) in "\n".join(map(str.strip, text.splitlines()))
    assert "the best of 2 versions: a.ipynb" in text
    assert f"Exercise 03 · {MASKS.title}\nmissing: nothing was handed in\n" in text
    assert (tmp_path / "bob" / "feedback.txt").read_text().startswith("bob: 10 of 10 points (1 of 1 passed)\n")


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x85", "\u2028"])
def test_no_text_of_an_answer_begins_a_line(tmp_path, end):
    forged = f"mine{end}Exercise 03 · Masks{end}pass: 10 of 10 points"
    result = Result.from_dict({**outcome(4, failure=forged), "message": forged, "printed": forged})
    feedback.write(tmp_path, [Grade("ann", OFFSETS, 4, "failed", "", result)], NO_PENALTY)
    text = (tmp_path / "ann" / "feedback.txt").read_text()
    first = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert [line.split(":")[0].split(" ·")[0] for line in first] == ["ann", "Exercise 01", "not yet"]
    assert text.count("pass: 10 of 10 points") == 3


def test_any_letters_of_an_answer_can_be_written(tmp_path):
    result = Result.from_dict(outcome(4, failure="half: \ud800"))
    feedback.write(tmp_path, [Grade("ann", OFFSETS, 4, "failed", "", result)], NO_PENALTY)
    assert "half: \\ud800" in (tmp_path / "ann" / "feedback.txt").read_text()


HELPER = RIGHT.replace("torch.cumsum(", "sums(") + "\n\ndef sums(*arguments):\n    return torch.cumsum(*arguments)\n"
RENAMED = RIGHT.replace("ends", "stops").replace("    return", "    # mine\n\n    return").replace("rows", "r")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"ann": RIGHT, "bob": RIGHT, "cas": RIGHT.replace("0)", "-1)")}, [("text", "ann, bob")]),
        ({"ann": RIGHT, "bob": RENAMED, "cas": f'"""Mine."""{RIGHT}'}, [(feedback.SAME_CODE, "ann, bob, cas")]),
        ({"ann": HELPER, "bob": HELPER.replace("sums(", "totals(")}, [(feedback.SAME_CODE, "ann, bob")]),
        ({"ann": HELPER, "bob": HELPER.replace("return torch.cumsum", "return torch.cumprod")}, []),
        ({"ann": TODO, "bob": TODO, "cas": "(", "dan": "("}, []),
        ({"ann": RIGHT, "bob": RIGHT.replace("torch.cumsum", "torch.sum")}, []),
    ],
)
def test_identical_answers_are_listed(tmp_path, answers, expected):
    hand_in(tmp_path, {f"{who}/01_offsets.ipynb": notebook(PREFIX + text.lstrip()) for who, text in answers.items()})
    found, _ = discovered(tmp_path)
    assert list(feedback.identical(found, BOTH)) == [("01_offsets", *row) for row in expected]
