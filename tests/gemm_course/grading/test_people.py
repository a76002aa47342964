"""Whose work is in one entry: a class a level too high, or versions of one student's."""

from __future__ import annotations

import time

import pytest

from gemm_course.exercises import manifest
from gemm_course.grading.people import people_in
from gemm_course.grading.submissions import match_name
from hand_ins import BOTH, answer, discovered, hand_in, notebook, read_here, zipped

PS1 = "01_offsets.ipynb"
CLASSES = {
    "nbgrader's folders": ("submitted", "submitted/{}/01_offsets/01_offsets.ipynb", ["ann", "bob"]),
    "folders": ("submitted", "submitted/{}/01_offsets.ipynb", ["ann", "bob"]),
    "folders two levels down": ("course", "course/week 2/hand-ins/{}/ps1/01_offsets.ipynb", ["ann", "bob"]),
    "names before the exercise's": ("hand-ins", "hand-ins/{}_01_offsets.ipynb", ["alice", "bob"]),
    "names after it": ("hand-ins", "hand-ins/01 Offsets-{} (1).ipynb", ["alice", "bob"]),
    "names alone": ("hand-ins", "hand-ins/{}.ipynb", ["alice", "bob"]),
    "zip files": ("all", "all/{}.zip", ["ann", "bob"]),
    "numbers of students": ("all", "all/{}/01_offsets.ipynb", ["1234567", "1234568"]),
    "letters and numbers": ("all", "all/{}/01_offsets.ipynb", ["s1", "s2"]),
    "teams": ("all", "all/team_{}/01_offsets.ipynb", ["team1", "team2"]),
    "a name in two words": ("all", "all/{} final/01_offsets.ipynb", ["Ann Lee", "Bob Lee"]),
    "names in other letters": ("all", "all/{}/01_offsets.ipynb", ["李明", "王芳"]),
    "a copy of the repository": ("repo", "repo/my_course/{}/01_offsets.ipynb", ["ann", "bob"]),
    "numbers of a list": ("all", "all/{}/01_offsets.ipynb", ["17", "18", "19"]),
    "zip files of numbers": ("all", "all/{}.zip", ["17", "18"]),
    "numbers that may be dates": ("all", "all/{}/01_offsets.ipynb", ["20231104", "20231105"]),
    "a date, and a number like one": ("all", "all/{}/01_offsets.ipynb", ["20231104", "20231399"]),
    "years": ("all", "all/{}/01_offsets.ipynb", ["2023", "2024"]),
    "letters": ("all", "all/{}/01_offsets.ipynb", ["a", "b", "c"]),
    "letters before the exercise's name": ("all", "all/{}_01_offsets.ipynb", ["a", "b"]),
    "zip files of letters": ("all", "all/{}.zip", ["a", "b"]),
    "a name that is a little word": ("all", "all/{}/01_offsets.ipynb", ["An", "Bob"]),
    "a name that is the entry's, and begins another": ("hi", "hi/{}/01_offsets.ipynb", ["hi", "hi2"]),
    "numbers with separators after a letter": ("all", "all/{}-1/01_offsets.ipynb", ["s12", "s13"]),
    "the entry's name and numbers": ("group", "group/{}/01_offsets.ipynb", ["group8", "group9"]),
}  # fmt: skip


@pytest.mark.parametrize(("entry", "place", "names"), CLASSES.values(), ids=CLASSES)
@pytest.mark.parametrize("beside", ["{}", "{}/source/01_offsets/01_offsets.ipynb", "{}/exercises/01_offsets.ipynb"])
def test_a_class_is_told_whatever_is_beside_it(tmp_path, entry, place, names, beside):
    files = {place.format(name.removeprefix("team")): answer(f"return '{name}'") for name in names}
    if place.endswith(".zip"):
        files = {name: zipped({"01_offsets.ipynb": data}) for name, data in files.items()}
    hand_in(tmp_path, {**files, **({beside.format(entry): answer()} if "/" in beside else {})})
    hand_in(tmp_path, {"source/01_offsets/01_offsets.ipynb": answer(), "cy/01_offsets.ipynb": answer("return 3")})
    found = {each.student: each for each in discovered(tmp_path, BOTH)[0]}
    assert list(found) == sorted([entry, "cy", "source"])
    assert list(found["cy"].answers) == list(found["source"].answers) == ["01_offsets"]
    assert found[entry].answers == {}
    told = f"has the work of several people ({', '.join(names)}): grade that folder by itself"
    assert found[entry].notes == [f"{told}; if it is one student's, add --one-student {entry}"]


@pytest.mark.parametrize("names", [("ann", "bob"), ("17", "18"), ("a", "b"), ("s1", "s2"), ("An", "Bob")])
@pytest.mark.parametrize("place", ["{}/{}.ipynb", "{}_{}.ipynb", "hand-ins/{}/{}.ipynb", "{}.ipynb"])
def test_a_class_is_told_where_everybody_answered_another_exercise(tmp_path, names, place):
    sources = {"01_offsets": answer(), "03_tail_masks": notebook("def product_tile(): pass")}
    files = {place.format(who, name): data for who, (name, data) in zip(names, sources.items())}
    hand_in(tmp_path / "submitted", files)
    (found,), _ = discovered(tmp_path, BOTH)
    assert found.answers == {}
    assert f"has the work of several people ({', '.join(names)})" in found.notes[0]


def test_people_with_numbers_of_one_list_are_told_from_the_tenth():
    places = [f"{i}/01_offsets.ipynb" for i in range(1, 13)]
    assert people_in({"01_offsets": places}, "submitted", BOTH) == ["10", "11", "12"]
    assert people_in({"01_offsets": places[:10]}, "submitted", BOTH) == []


@pytest.mark.parametrize(
    ("entry", "folders", "people"),
    [
        ("all", [f"team_{i}/{name}" for i in (1, 3) for name in ("01_offsets", "03_tail_masks")], ["team1", "team3"]),
        ("all", ["20241120/ann/01_offsets", "bob/01_offsets"], ["ann", "bob"]),
        ("lee", ["Ann Lee/01_offsets", "Bob Lee/01_offsets"], ["Ann", "Bob"]),
        ("An Lee", ["An/01_offsets", "hopper/01_offsets"], []),
        ("ann_hw1", ["hw1/01_offsets", "hw2/03_tail_masks"], []),
    ],
)  # fmt: skip
def test_words_of_the_entry_and_of_folders_of_several_exercises(entry, folders, people):
    places = {each.name: [f"{place}.ipynb" for place in folders if place.endswith(each.name)] for each in BOTH}
    assert people_in(places, entry, BOTH) == people


ONE = {
    "versions in folders": ["v1/01_offsets.ipynb", "v2/01_offsets.ipynb", "Version 3 (final)/01_offsets.ipynb"],
    "attempts": ["attempt1/01_offsets.ipynb", "2nd try/01_offsets.ipynb", "old/01_offsets.ipynb", PS1],
    "weeks": ["week 1/mine/01_offsets.ipynb", "week 2/mine/01_offsets.ipynb", "2026-11-20/01_offsets.ipynb"],
    "numbers": ["1/01_offsets.ipynb", "2/01_offsets.ipynb", "20261120/01_offsets.ipynb", "a/01_offsets.ipynb"],
    "copies": [PS1, "01_offsets (1).ipynb", "01_offsets-Copy2.ipynb", "Copy of 01_offsets.ipynb", "01_offsets_b.ipynb"],
    "names of copies": [
        "my 01_offsets.ipynb", "01_offsets_final.ipynb", "01_offsets_FINAL_v2.ipynb", "hw1_01_offsets.ipynb",
    ],
    "the repository": [
        "r/exercises/01_offsets.ipynb", "r/solutions/01_offsets.ipynb", "r/my_course/exercises/01_offsets.ipynb",
        "r/my_course/exercises/01_offsets.yours.ipynb", "r/attempt1/01_offsets.ipynb", "r/attempt2/01_offsets.ipynb",
    ],
    "the repository, and a folder beside": [
        "grouped-gemm-course/exercises/01_offsets.ipynb", "colab/01_offsets.ipynb", PS1,
    ],
    "one's own name": ["Ann/01_offsets.ipynb", "lee_ann_01_offsets.ipynb", "ann lee 123/01_offsets.ipynb", PS1],
    "a platform's names": ["ann_1234_5678_01_offsets.ipynb", "ann_LATE_1234_5679_01_offsets-1.ipynb"],
    "other names": ["homework.ipynb", "Untitled.ipynb", "Untitled1.ipynb", "7th-try-2.ipynb"],
    "a zip file beside": ["hand in.zip", PS1],
    "another file of another name": ["01_offsets.ipynb", "bob.pdf", "alice/hw.txt"],
    "dates": [
        "2024-05-01/01_offsets.ipynb", "2024-05-02/01_offsets.ipynb", "20.11.2024/01_offsets.ipynb",
        "20241120_1030/01_offsets.ipynb", "20241121-093000/01_offsets.ipynb", "11-20/01_offsets.ipynb",
    ],
    "dates with a word": [
        "attempt 20241120/01_offsets.ipynb", "attempt20241121/01_offsets.ipynb", "try2024-11-22/01_offsets.ipynb",
        "try2024-11-23/01_offsets.ipynb", "ann 20241122/01_offsets.ipynb", "ann20241123/01_offsets.ipynb",
        "hw 2023/01_offsets.ipynb", "hw 2024/01_offsets.ipynb",
    ],
    "large numbers": [
        "week 10/01_offsets.ipynb", "week 11/01_offsets.ipynb", "12th try/01_offsets.ipynb", "13th/01_offsets.ipynb",
        "01_offsets (17).ipynb", "01_offsets (18).ipynb", "v1.14/01_offsets.ipynb", "1.15/01_offsets.ipynb",
    ],
    "numbers up to 9": [f"{i}/01_offsets.ipynb" for i in (0, 1, 2, "03", 9)],
    "letters": [
        "01_offsets_a.ipynb", "01_offsets_b.ipynb", "part a/01_offsets.ipynb", "part b/01_offsets.ipynb",
        "1a/01_offsets.ipynb", "1b/01_offsets.ipynb",
    ],
    "one's own name, and a copy's number": [
        "ann/01_offsets.ipynb", "ann 2/01_offsets.ipynb", "ann (3)/01_offsets.ipynb", "ann lee_4/01_offsets.ipynb",
        "ann123/01_offsets.ipynb",
    ],
    "a year's months": ["2024/11/01_offsets.ipynb", PS1],
    "one folder in another": ["stuff of mine/triton/01_offsets.ipynb", "stuff of mine/01_offsets.ipynb"],
}  # fmt: skip


@pytest.mark.parametrize("names", ONE.values(), ids=ONE)
def test_versions_are_one_students(tmp_path, names):
    files = {name: answer(f"return {i}") if name.endswith("ipynb") else b"" for i, name in enumerate(names)}
    files |= {name: zipped({"x/01_offsets.ipynb": answer()}) for name in names if name.endswith(".zip")}
    hand_in(tmp_path / "lee_ann_123", files)
    (found,), _ = discovered(tmp_path, BOTH)
    assert (found.student, found.notes) == ("lee_ann_123", [])
    assert found.answers["01_offsets"]


def test_exercises_of_their_own_folders_are_one_students(tmp_path):
    masks = notebook("def product_tile(): pass")
    hand_in(tmp_path / "ann", {"offsets/01_offsets.ipynb": answer(), "masks/03_tail_masks.ipynb": masks})
    (found,), _ = discovered(tmp_path, BOTH)
    assert (list(found.answers), found.notes) == (["01_offsets", "03_tail_masks"], [])


@pytest.mark.parametrize(
    "folder",
    [
        "{name}",
        "{id}",
        "{number}/{letter}",
        "{topic}",
        "e{number}",
        "Aufgabe {number}",
        "lesson {number}",
        "mine",
        "run7",
    ],
)
def test_a_folder_for_each_exercise_or_for_all_is_one_students(folder):
    everything = manifest.exercises()
    places = {}
    for exercise in everything:
        number, topic = int(exercise.id[:2]), exercise.name.partition("_")[2]
        where = folder.format(name=exercise.name, id=exercise.id, number=number, letter=exercise.id[2:], topic=topic)
        places[exercise.name] = [f"{where}/{exercise.name}.ipynb"]
    assert people_in(places, "ann", everything) == []


def test_no_name_takes_long_to_compare():
    names = (
        "1" * 30_000 + "x",
        "1_" * 10_000 + "x",
        "20241120_" * 5_000,
        "a." + "_" * 30_000,
        "a.b" * 10_000,
        "(" * 9_000,
    )
    started = time.process_time()
    people_in({"01_offsets": [f"{name}!/01_offsets.ipynb" for name in names]}, "ann", BOTH)
    assert time.process_time() - started < 0.5


def test_the_grader_has_the_last_word(tmp_path):
    hand_in(tmp_path, {f"ann/{day}/01_offsets.ipynb": answer(f"return '{day}'") for day in ("monday", "tuesday")})
    students = {"ann": [tmp_path / "ann"]}
    assert not read_here(students)[0].answers
    assert len(read_here(students, one_student=["ann"])[0].answers["01_offsets"]) == 2
    assert not read_here(students, one_student=["bob"])[0].answers


def test_an_odd_name_is_quoted_for_the_shell_and_cut(tmp_path):
    hand_in(tmp_path, {f"the class's/{who * 60}/01_offsets.ipynb": answer(who) for who in "xyzw"})
    (found,), _ = discovered(tmp_path, BOTH)
    assert found.notes[0].endswith("""add --one-student 'the class'"'"'s'""")
    assert f"({'w' * 40}, {'x' * 40}, {'y' * 40}, …)" in found.notes[0]


def test_no_name_of_the_courses_own_files_is_a_persons():
    """So whoever hands in a copy of the repository, with versions in it, is one student."""
    everything = manifest.exercises()
    for exercise in everything:
        assert match_name(exercise.name, everything)[0] == exercise
        places = [f"{folder}/{exercise.name}.ipynb" for folder in ("exercises", "my_course/exercises", "solutions")]
        places += [f"exercises/{exercise.name}{more}.ipynb" for more in (".yours", ".yours-2", ".new", "-checkpoint")]
        assert people_in({exercise.name: [*places, "somebody/x.ipynb"]}, "submitted", everything) == []
