"""What each answer earns, and the table, with judges that only pretend."""

from __future__ import annotations

import os

import pytest

from gemm_course.grading import grades
from gemm_course.grading.class_folder import Answer, Submission
from gemm_course.judging.results import REASON_BELOW
from hand_ins import (
    BOTH,
    CANNOT,
    MASKS,
    OFFSETS,
    answer,
    cache_in,
    class_of,
    discovered,
    graded,
    hand_in,
    outcome,
    read,
)


def test_the_best_version_counts_and_the_message_says_so(tmp_path, pretend):
    pretend.answers.update(b=outcome(6, failure="slow\nvery"), c=outcome(0, "TODO 01: do it", "todo"))
    pretend.answers.update(d=outcome(3, "slower"))
    with cache_in(tmp_path) as cache:
        one, other, third, fourth = graded(cache, class_of(ann="c|b|d", bob="d|a", cas="b", dan="d|b"))
    assert (one.points, one.status, one.message) == (
        6, "failed", "it is quick: slow; very (the best of 3 versions: 1.ipynb)",
    )  # fmt: skip
    assert (other.points, other.status, other.message) == (10, "passed", "the best of 2 versions: 1.ipynb")
    assert (third.points, third.message) == (6, "it is quick: slow; very")
    assert fourth.points == 6


REFUSES = "the compiler refuses it:\nline 5: acc = 1\n\nacc has another type"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (outcome(9, failure=REFUSES), "it is quick: the compiler refuses it: line 5: acc = 1; acc has another type"),
        (outcome(0, f"{REFUSES}\n"), "the compiler refuses it: line 5: acc = 1; acc has another type"),
        (outcome(0, "a message:\n" + "word " * 58), "a message: " + "word " * 57 + "word"),
        (outcome(0, "some words,\n" + "word " * 80), "some words, " + "word " * 56 + "word…"),
        (outcome(0, "name " + "x" * 400), "name " + "x" * 294 + "…"),
    ],
)  # fmt: skip
def test_a_message_is_told_to_its_end_or_cut_between_words(tmp_path, pretend, result, expected):
    pretend.answers.update(a=result, b=result, c=outcome(0, "TODO 01: later", "todo"))
    with cache_in(tmp_path) as cache:
        alone, best = graded(cache, class_of(ann="a", bob="c|b"))
    assert alone.message == expected
    assert len(expected) <= grades.MAX_MESSAGE
    note = " (the best of 2 versions: 1.ipynb)"
    assert best.message.endswith(note), "which version counts is never cut off"
    assert len(best.message) <= grades.MAX_MESSAGE
    assert expected.startswith(best.message.removesuffix(note).removesuffix("…"))


def test_a_refused_version_does_not_stand_in_for_one_that_was_checked(tmp_path, pretend):
    pretend.answers["b"] = outcome(0, "all wrong")
    found = [Submission("ann", {"01_offsets": [Answer("x", refused="is a link"), Answer("y", "b")]})]
    with cache_in(tmp_path) as cache:
        (grade,) = graded(cache, found)
    assert (grade.status, grade.message) == ("failed", "all wrong (the best of 2 versions: y; refused: x: is a link)")


LONG = Answer("a.ipynb, cell 3", refused="the answer's cell has 10,240 kB; 100 are allowed")


@pytest.mark.parametrize(
    ("versions", "notes", "expected"),
    [
        (["hole", LONG], [], ("refused", f"{LONG.where}: {LONG.refused}")),
        (
            ["wrong", LONG],
            [],
            ("failed", f"no (the best of 2 versions: 0.ipynb; refused: {LONG.where}: {LONG.refused})"),
        ),
        (["wrong"], ["x.zip: is encrypted"], ("failed", "no (refused: x.zip: is encrypted)")),
        (["hole"], ["x.zip: is encrypted"], ("todo", "TODO 01: later (refused: x.zip: is encrypted)")),
        (["hole", LONG], ["x", "y"], ("refused", f"{LONG.where}: {LONG.refused} (refused: x, and 1 more)")),
        (["right", LONG], ["x.zip: is encrypted"], ("passed", "the best of 2 versions: 0.ipynb")),
        ([LONG], [], ("refused", f"{LONG.where}: {LONG.refused}")),
    ],
)
def test_what_is_refused_beside_an_answer_is_told_unless_that_passes(tmp_path, pretend, versions, notes, expected):
    pretend.answers.update(hole=outcome(0, "TODO 01: later", "todo"), wrong=outcome(0, "no"))
    versions = [each if isinstance(each, Answer) else Answer("0.ipynb", each) for each in versions]
    with cache_in(tmp_path) as cache:
        (grade,) = graded(cache, [Submission("ann", {"01_offsets": versions}, notes=notes)])
    assert (grade.status, grade.message) == expected


def test_why_a_long_names_cell_is_refused_is_never_cut_off(tmp_path, pretend):
    pretend.answers["wrong"] = outcome(0, "word " * 100)
    versions = [Answer(f"{'x' * 400}/0.ipynb", "wrong"), Answer("y" * 400, refused=LONG.refused), LONG]
    found = [
        Submission("ann", {"01_offsets": versions}, skipped={"01_offsets": 20_000}),
        Submission("bob", {"01_offsets": versions[1:2]}),
    ]
    with cache_in(tmp_path) as cache:
        ann, bob = graded(cache, found)
    assert ann.message.startswith("word word word word")
    assert ann.message.endswith(f": {LONG.refused}, and 1 more)")
    assert len(ann.message) <= grades.MAX_MESSAGE
    assert bob.message.endswith(f": {LONG.refused}")


QUOTED = "line 7: this waits\n    a = b[0]\n(4 groups)"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (QUOTED, "line 7: this waits: `a = b[0]` (4 groups)"),
        ("it makes no progress\n    while a:\nIt was in line 3", "it makes no progress: `while a:`; It was in line 3"),
        ("tile 0 is wrong\nNaN comes\n\n(4 groups)", "tile 0 is wrong; NaN comes (4 groups)"),
        (
            "the edge is between\n2 rows, and\n3 rows share it:\nis it capped?\nor not",
            "the edge is between 2 rows, and 3 rows share it: is it capped? or not",
        ),
    ],
)
def test_on_one_line_no_sentence_runs_into_the_next_nor_into_the_learners_line(tmp_path, pretend, message, expected):
    pretend.answers["a"] = outcome(0, message)
    with cache_in(tmp_path) as cache:
        (grade,) = graded(cache, class_of(ann="a"))
    assert grade.message == expected


def test_the_reason_told_is_one_that_says_why(tmp_path, pretend):
    result = outcome(0, failure="two programs store it")
    result["properties"][0] |= {"status": "fail", "message": f"{REASON_BELOW}\n(4 groups)", "follows": True}
    pretend.answers["a"] = result
    with cache_in(tmp_path) as cache:
        (grade,) = graded(cache, class_of(ann="a"))
    assert grade.message == "it is quick: two programs store it"


def test_the_same_text_is_checked_once_for_the_whole_class(tmp_path, pretend):
    with cache_in(tmp_path) as cache:
        found = graded(cache, class_of(ann="a", bob="a", cas="b"))
    assert [source for source, _ in pretend] == ["a", "b"]
    assert [grade.points for grade in found] == [10, 10, 10]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ("open|wrong", (0, "unchecked", f"{CANNOT} (the best of 2 versions: 0.ipynb)")),
        ("open|half", (6, "unchecked", f"{CANNOT} (the best of 2 versions: 1.ipynb)")),
        ("open|right", (10, "passed", "the best of 2 versions: 1.ipynb")),
    ],
)
def test_a_version_that_cannot_be_checked_may_be_the_best(tmp_path, pretend, versions, expected):
    pretend.answers.update(open=outcome(0, CANNOT, "unchecked"), wrong=outcome(0, "no"), half=outcome(6, "slow"))
    with cache_in(tmp_path) as cache:
        (grade,) = graded(cache, class_of(ann=versions))
    assert (grade.points, grade.status, grade.message) == expected


def test_a_students_checks_have_a_budget_and_the_first_versions_come_first(tmp_path, pretend):
    """Also in a second run. Others, and others with the same answers, pay nothing for it."""
    pretend.seconds = 40.0
    slow = {each: [Answer(f"{i}.ipynb", f"{each} {i}") for i in range(4)] for each in ("01_offsets", "03_tail_masks")}
    found = [Submission("eve", slow), *class_of(ann="right|01_offsets 3", bob="other")]
    pretend.answers.update({f"{each} {i}": outcome(0, "slow") for each in slow for i in range(4)})
    for run in range(2):
        with cache_in(tmp_path / "class") as cache:
            made = grades.grade(found, BOTH, 1, cache, 1, lambda *_: None, budget_s=100.0)
        by = {(each.student, each.exercise): each for each in made}
        assert {by[who, OFFSETS].points for who in ("ann", "bob")} == {10}
        assert by["eve", OFFSETS].status == by["eve", MASKS].status == "failed"
        for exercise in BOTH:
            assert "not checked: this student's other answers took more than 100 s" in by["eve", exercise].message
        asked = [source for source, _ in pretend]
        assert asked.index("03_tail_masks 0") < asked.index("01_offsets 1")
        assert sum(source.startswith("0") for source in asked) == 4, f"three of eve's and one of ann's, in run {run}"


def test_what_only_an_attack_needs_is_marked_beside_any_other_version(tmp_path, pretend):
    pretend.answers["attack"] = outcome(0, "line 1: an answer has no need of .obj") | {"flagged": True}
    with cache_in(tmp_path / "class") as cache:
        made = graded(cache, class_of(ann="right", bob="attack|right", eve="attack"))
    assert [(each.student, each.status, each.points) for each in made] == [
        ("ann", "passed", 10), ("bob", "passed", 10), ("eve", "flagged", 0),
    ]  # fmt: skip
    assert "flagged: 0.ipynb: line 1: an answer has no need of .obj" in made[1].message


def test_an_answer_that_its_judge_dies_of_is_refused_and_not_remembered(tmp_path, pretend):
    pretend.answers["a"] = ["the judge died", outcome(10)]
    with cache_in(tmp_path) as cache:
        ann, bob = graded(cache, class_of(ann="a", bob="b"))
        assert (ann.status, ann.points, bob.status) == ("refused", 0, "passed")
        assert ann.message == "the judge died: grade it by hand"
        assert [g.points for g in graded(cache, class_of(ann="a", bob="b"))] == [10, 10]


def test_a_row_for_each_student_and_exercise_and_a_total(tmp_path, pretend):
    pretend.answers["b"] = outcome(6, failure="slow")
    with cache_in(tmp_path) as cache:
        found = graded(cache, class_of(ann="a", bob="b"), seed=7, exercises=BOTH)
    grades.write_csv(tmp_path / "grades.csv", grades.rows(found, 7))
    rows = [tuple(row.values()) for row in read(tmp_path / "grades.csv")]
    assert rows == [
        ("ann", "01_offsets", "10", "10", "passed", "", "7"),
        ("ann", "03_tail_masks", "0", "10", "missing", "nothing was handed in", "7"),
        ("ann", "total", "10", "20", "", "1 of 2 passed", "7"),
        ("bob", "01_offsets", "6", "10", "failed", "it is quick: slow", "7"),
        ("bob", "03_tail_masks", "0", "10", "missing", "nothing was handed in", "7"),
        ("bob", "total", "6", "20", "", "0 of 2 passed", "7"),
    ]
    assert tuple(read(tmp_path / "grades.csv")[0]) == grades.COLUMNS


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", " =", "\t=", "\r=", "\n+", "＝"])
def test_no_cell_is_a_formula(tmp_path, begin):
    text = begin + 'HYPERLINK("http://x"),"'
    table = grades.rows([grades.Grade(text, OFFSETS, 0, "failed", text)], 0)
    grades.write_csv(tmp_path / "grades.csv", table)
    for row in read(tmp_path / "grades.csv"):
        for name in ("student", "message"):
            assert row[name].startswith("'") or row[name] == "0 of 1 passed"
            assert "\n" not in row[name]
            assert "\r" not in row[name]


def test_a_name_of_any_bytes_gets_its_row(tmp_path, pretend):
    hand_in(tmp_path / "in", {os.fsdecode(b"\xffann\x1b[31m/01_offsets.ipynb"): answer()})
    found, _ = discovered(tmp_path / "in", BOTH)
    with cache_in(tmp_path) as cache:
        grades.write_csv(tmp_path / "grades.csv", grades.rows(graded(cache, found), 0))
    assert [row["student"] for row in read(tmp_path / "grades.csv")] == ["\\xffann\\x1b[31m"] * 2


def test_a_spreadsheet_takes_the_table_for_utf_8(tmp_path):
    grades.write_csv(tmp_path / "grades.csv", grades.rows([grades.Grade("Müller", OFFSETS, 0, "failed", "3 µs")], 0))
    written = (tmp_path / "grades.csv").read_bytes()
    assert written.startswith(b"\xef\xbb\xbfstudent,")
    assert written.count(b"\xef\xbb\xbf") == 1
    assert [row["student"] for row in read(tmp_path / "grades.csv")] == ["Müller"] * 2


def test_a_table_that_cannot_be_finished_leaves_the_old_one(tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text("old")

    def table():
        yield ("ann",)
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        grades.write_csv(path, table())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["grades.csv"]
