"""What the judge accepts from a process that ran an answer."""

from __future__ import annotations

import os

import pytest
import torch

from gemm_course.judging.untrusted import (
    Layout,
    Output,
    bytes_in,
    changed_without_store,
    parse_reply,
    parse_watched,
    printable,
    remove,
)
from outputs import written

ENDLESS = {"kind": "endless", "type": "", "text": "", "line": 9, "code": "tick()", "program": [0]}


@pytest.mark.parametrize(
    "loop",
    [3, {}, {"line": "4", "code": "", "names": []}, {"line": 4, "code": "", "names": [3]}, {"line": 4, "code": 1}],
)
def test_a_loop_of_another_form_is_no_message(loop):
    with pytest.raises(ValueError, match=r"at `\$\.error\.loop"):
        parse_reply({"error": {**ENDLESS, "loop": loop}})


@pytest.mark.parametrize(
    "change",
    [{"buffer": torch.zeros(7)}, {"counts": torch.zeros(1)}, {"writers": torch.zeros(2, 3)},
     {"buffer": torch.zeros(6, dtype=torch.int32)}],
)  # fmt: skip
def test_an_output_is_what_was_laid_out_for_it(change):
    layout = Layout([Output("C", "float32", 6, [2, 3], [3, 1], 0)])
    data = {"buffer": torch.zeros(6), "counts": torch.zeros(6), "writers": torch.zeros(6)}
    assert parse_watched({"outputs": [data]}, layout)[0]["C"].values.shape == (2, 3)
    for outputs in ([{**data, **change}], [], [data, data]):
        with pytest.raises(ValueError, match=r"of another form|zip\(\)"):
            parse_watched({"outputs": outputs}, layout)


@pytest.mark.parametrize(
    "data",
    [
        3, [], None, {"case": "0"}, {"ready": 1}, {"error": 3}, {"error": {**ENDLESS, "kind": "odd"}},
        {"error": {**ENDLESS, "program": []}}, {"error": {**ENDLESS, "line": None}},
    ],
)  # fmt: skip
def test_a_reply_of_another_form_is_refused(data):
    with pytest.raises(ValueError, match=r"^(Expected|Invalid)"):
        parse_reply(data)


def test_only_an_inputs_outcome_without_an_error_is_a_result():
    assert parse_reply({"case": 0}).is_result
    assert not parse_reply({"done": True}).is_result
    assert not parse_reply({"case": 0, "error": ENDLESS}).is_result


def test_a_change_that_no_store_made_is_told_apart():
    found = written((2, 3), unwritten=[(0, 0)])
    found.counts.fill_(1)
    assert not changed_without_store(found)
    found.counts[0, 0] = 0
    assert not changed_without_store(found), "nothing changed there"
    found.counts[1, 2] = 0
    assert changed_without_store(found)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü\ttab\nline", "plain ü\ttab\nline"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("\x1b[2J\x07\x9b", "�[2J��"),
        ("\u202eevil\u2066", "�evil�"),
        ("x" * 4000, "x" * 4000),
        ("x" * 4001, "x" * 4000 + "…"),
    ],
)
def test_what_is_shown_moves_no_cursor_and_is_not_long(text, shown):
    assert printable(text) == shown


def test_the_bytes_of_a_folder_are_those_on_the_disk(tmp_path):
    assert bytes_in(str(tmp_path)) == 0
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "link").symlink_to("/usr/bin/env")
    assert 100_000 <= bytes_in(str(tmp_path)) < 120_000
    assert bytes_in(str(tmp_path / "none")) == 0


def test_many_empty_files_are_too_many(tmp_path):
    for number in range(1001):
        (tmp_path / str(number)).symlink_to("/")
    assert bytes_in(str(tmp_path)) == float("inf")


def test_a_folder_of_any_depth_is_looked_at_and_removed(tmp_path, monkeypatch):
    (tmp_path / "outside").write_text("the grader's")
    monkeypatch.chdir(tmp_path)
    for _ in range(1100):  # deeper than Python calls itself, and longer than a path may be
        os.mkdir("deep")
        os.chdir("deep")
    os.symlink(tmp_path, "link")
    os.chdir(tmp_path)
    assert bytes_in(str(tmp_path / "deep")) == float("inf")
    remove(str(tmp_path / "deep"))
    assert os.listdir() == ["outside"]
