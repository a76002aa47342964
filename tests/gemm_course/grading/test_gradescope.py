"""Gradescope's files, and which folders hold nothing else."""

from __future__ import annotations

import json
import os

import msgspec
import pytest

from gemm_course.grading import gradescope
from gemm_course.grading.grades import Grade, Penalty
from gemm_course.judging.results import NOT_ON_GPU, Result
from hand_ins import BOTH, CANNOT, MASKS, OFFSETS, answer, discovered, hand_in, outcome


def grade_of(student, outcome, message=""):
    result = msgspec.convert(outcome, Result)
    return Grade(student, OFFSETS, result.points, result.status, message, result)


def test_a_test_for_each_property_or_one_for_what_was_not_checked(tmp_path):
    found = [
        grade_of("ann", outcome(10)),
        grade_of("bob", outcome(6, failure="slow")),
        grade_of("cas", outcome(6, "it ends"), "it ends"),
        Grade("dan", OFFSETS, 0, "refused", "is a link"),
    ]
    gradescope.write(tmp_path, found, 7)
    tests = {}
    for grade in found:
        made = json.loads((tmp_path / grade.student / "results.json").read_text())
        assert (made["stdout_visibility"], made["extra_data"]) == ("hidden", {"seed": 7})
        assert made["output"] == f"{int(grade.points == 10)} of 1 exercises passed"
        keys = ("number", "name", "score", "max_score", "status", "output", "visibility")
        assert all(tuple(test) == keys and test["visibility"] == "visible" for test in made["tests"])
        tests[grade.student] = [tuple(test.values())[:-1] for test in made["tests"]]
    assert tests == {
        "ann": [("01.1", "it is right", 10, 10, "passed", ""), ("01.2", "it is quick", 0, 0, "passed", "")],
        "bob": [("01.1", "it is right", 6, 6, "passed", ""), ("01.2", "it is quick", 0, 4, "failed", "slow")],
        "cas": [("01.1", "it is right", 6, 6, "passed", ""), ("01.2", "it is quick", 0, 4, "failed", "it ends")],
        "dan": [("01", OFFSETS.title, 0, 10, "failed", "is a link")],
    }


def test_remarks_that_belong_to_no_property_are_in_the_output():
    remark = f"{NOT_ON_GPU}: out of memory"
    theirs = [grade_of("ann", outcome(10, remark), remark), grade_of("ann", outcome(0, CANNOT, "unchecked"), CANNOT)]
    made = gradescope.results(theirs, 0)
    assert made["output"].splitlines() == ["1 of 2 exercises passed", f"01: {remark}", f"01: {CANNOT}"]


def test_a_penalty_is_in_the_score(tmp_path):
    made = [Grade("ann", OFFSETS, 10, "passed"), Grade("ann", MASKS, 5, "failed", "half")]
    plain = gradescope.results(made, 1)
    assert "score" not in plain
    late = gradescope.results(made, 1, Penalty(10, {"ann": 2}))
    assert late == {**plain, "score": 12.0, "output": f"{plain['output']}\n{late['output'].splitlines()[-1]}"}
    assert late["output"].endswith("1 of 2 passed; 2 days late: 20 % of 15 points taken off")
    assert gradescope.results(made, 1, Penalty(60, {"ann": 2}))["score"] == 0


def test_no_name_is_too_long_for_a_folder(tmp_path):
    """What cannot be seen in a name is spelled, which takes twice or four times its bytes."""
    names = [r"\u200b" * 60 + who for who in ("ann", "bob")]
    gradescope.write(tmp_path, [grade_of(who, outcome()) for who in [*names, "zoe"]], 0)
    assert len(list(tmp_path.glob("*/results.json"))) == 3
    assert (tmp_path / "zoe").is_dir()


def test_what_was_written_is_found_again_whatever_an_operating_system_adds(tmp_path):
    gradescope.write(tmp_path / "in" / "scores", [grade_of("ann", outcome())], 0)
    (tmp_path / "in" / "scores" / ".DS_Store").touch()
    hand_in(tmp_path / "in", {"bob/01_offsets.ipynb": answer(), "cas.ipynb": answer()})
    os.symlink(tmp_path / "in" / "scores", tmp_path / "in" / "link")
    assert gradescope.written_in(tmp_path / "in") == [tmp_path / "in" / "scores"]
    assert gradescope.written_in(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    "files",
    [
        {"eve/results.json": b""},
        {"eve/a/results.json": b"", "eve/b/": b""},
        {"eve/a/results.json": b"", "eve/01_offsets.ipynb": answer()},
        {"eve/a/results.json": b"", "eve/a/01_offsets.ipynb": answer()},
        {"eve/a/results.json/01_offsets.ipynb": answer()},
        {"eve/": b""},
    ],
)
def test_a_students_results_are_a_students(tmp_path, files):
    for name, data in files.items():
        if name.endswith("/"):
            (tmp_path / name).mkdir(parents=True)
        else:
            hand_in(tmp_path, {name: data})
    ignore = gradescope.written_in(tmp_path)
    found, _ = discovered(tmp_path, BOTH, ignore=ignore)
    assert ([each.student for each in found], ignore) == (["eve"], [])
