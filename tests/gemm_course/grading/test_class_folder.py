"""Whose work is in a folder of submissions, by names that anyone may have chosen."""

from __future__ import annotations

import time

import pytest

from gemm_course.exercises import manifest
from gemm_course.grading import class_folder
from hand_ins import answer, hand_in


def students(folder):
    return list(class_folder.discover(folder, manifest.exercises()).students)


@pytest.mark.parametrize(
    "name",
    [
        "copy copy copy copy copy copy copy copy copy copy copy copy copy copy x 01_offsets.ipynb",
        "01_offsets copy copy copy copy copy copy copy copy copy copy copy copy (1) final.ipynb",
        "01_offsets" + " _- " * 55 + ".ipynb", "_" * 230 + "01_offsets.ipynb", "1_" * 110 + "x.ipynb",
    ],
)  # fmt: skip
def test_no_name_takes_long_to_read(tmp_path, name):
    hand_in(tmp_path, {name: b"{"})
    started = time.process_time()
    assert len(students(tmp_path)) == 1
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("01_offsets ann copy copy 2 (1)copy.ipynb", "ann"), ("copy of 01_offsets_ann-copy1 (2).ipynb", "ann"),
        ("01_offsets_photocopy.ipynb", "photocopy"), ("Copy of ann 01_offsets (1)(2).ipynb", "ann"),
        ("01_offsets_7 copy.ipynb", "7"),
    ],
)  # fmt: skip
def test_what_marks_a_copy_is_no_students_name(tmp_path, name, student):
    hand_in(tmp_path, {name: answer()})
    assert students(tmp_path) == [student]


def test_hidden_work_is_told_and_not_graded(tmp_path):
    names = ["...zip", ".01_offsets.ipynb", ".zip", "._ann.zip", ".DS_Store", ".x.ipynb/a", "ann.zip"]
    hand_in(tmp_path, dict.fromkeys(names, b""))
    found = class_folder.discover(tmp_path, manifest.exercises())
    assert (found.unrecognized, list(found.students)) == (["...zip", ".01_offsets.ipynb", ".zip"], ["ann"])


def test_what_cannot_be_seen_in_a_name_is_shown(tmp_path):
    names = (
        "zero width",
        "zero\u200bwidth",
        "a\u202eb",
        "e\x1b[2Jf",
        "new\nline",
        "Jos\u00e9",
        "ann\ufe0f",
        "\u3164",
        "\u2800",
    )
    hand_in(tmp_path, {f"{name}/01_offsets.ipynb": answer() for name in names})
    shown = (
        "Jos\u00e9", r"a\u202eb", r"e\x1b[2Jf", r"new\nline", "zero width", r"zero\u200bwidth",
        r"ann\ufe0f", r"\u3164", r"\u2800",
    )  # fmt: skip
    assert sorted(students(tmp_path)) == sorted(shown)


def test_names_that_look_alike_and_merged_entries_are_told(tmp_path):
    names = (
        "anna",
        "Anna",
        "\u0430nna",
        "ann-marie",
        "ann_marie",
        "b0b",
        "bob",
        "zoe",
        "w\u0456\u0456",
        "wii",
        "eve",
        "eve\u200b",
    )
    hand_in(tmp_path, {f"{name}/01_offsets.ipynb": answer() for name in names})
    flood = {f"zoe_01_offsets ({i}).ipynb": answer() for i in range(2)}
    hand_in(tmp_path, flood | {"cas_01_offsets.ipynb": answer(), "cas_03_tail_masks.ipynb": answer()})
    there = class_folder.discover(tmp_path, manifest.exercises())
    assert there.similar == [
        ["Anna", "anna", "\u0430nna"], ["ann-marie", "ann_marie"], ["b0b", "bob"], ["eve", r"eve\u200b"],
        ["wii", "w\u0456\u0456"],
    ]  # fmt: skip
    assert there.merged == ["zoe"], "notebooks side by side are how some classes hand in"


def test_folders_of_one_name_in_different_letters_are_told(tmp_path):
    hand_in(tmp_path, {f"{name}/01_offsets.ipynb": answer() for name in ("Zo\u00eb", "Zoe\u0308", "Zoe")})
    there = class_folder.discover(tmp_path, manifest.exercises())
    assert (list(there.students), there.alike) == (["Zoe", "Zo\u00eb"], ["Zo\u00eb"])
