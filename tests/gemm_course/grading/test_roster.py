"""The roster of a class, from a file that a spreadsheet wrote."""

from __future__ import annotations

import re

import pytest

from gemm_course.grading import roster
from gemm_course.grading.class_folder import Submission


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("student\nann\nbob\n", {"ann": 0, "bob": 0}),
        ("\ufeffmail,student,days_late\r\na@b, ann ,1.2\r\nc@d,bob,\r\n,,\r\n", {"ann": 2, "bob": 0}),
        ("student,days_late\nZoe\u0308,0\n\nbob\n", {"Zo\u00eb": 0, "bob": 0}),
    ],
)
def test_a_table_with_a_header(tmp_path, text, expected):
    (tmp_path / "r.csv").write_bytes(text.encode())
    assert roster.read(tmp_path / "r.csv") == expected


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "its first line must name a column 'student'"),
        (b"name\nann\n", "its first line must name a column 'student'"),
        (b"student\nann\nann\n", "line 3: ann is there twice"),
        (b"student,days_late\nann,-1\n", "line 2: days_late must be a number of at least 0, got '-1'"),
        (b"student,days_late\nann,nan\n", "line 2: days_late must be a number of at least 0, got 'nan'"),
        (b"student,days_late\nann,inf\n", "line 2: days_late must"), (b"student,days_late\nann,two\n", "got 'two'"),
        (b"student\n\xff\n", "it is not text in UTF-8"), (b"s" * (5 << 20), "more than 4 MB"),
        (b"student\n" + b"x" * 200_000 + b"\n", "field larger"),
    ],
)  # fmt: skip
def test_what_is_no_roster_is_told(tmp_path, data, says):
    (tmp_path / "r.csv").write_bytes(data)
    with pytest.raises(ValueError, match=rf"r\.csv is no roster: .*{re.escape(says)}"):
        roster.read(tmp_path / "r.csv")


def test_absentees_are_added_in_order():
    found = roster.with_absentees([Submission("bob"), Submission("new")], {"cas": 0, "ann": 1, "bob": 0})
    assert [each.student for each in found] == ["ann", "bob", "cas", "new"]
