"""Which answers are found in what people hand in, and whose they are."""

from __future__ import annotations

import os
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from gemm_course.grading.class_folder import Answer
from gemm_course.notebook import cells
from hand_ins import ANSWER, BOTH, OFFSETS, PREFIX, answer, discovered, hand_in, notebook, read_here, zipped


def collected(folder):
    """{student: {exercise: [the versions' places]}}, without what nobody handed in."""
    found, _ = discovered(folder, BOTH)
    return {
        each.student: {name: [a.where for a in versions] for name, versions in each.answers.items()} for each in found
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"ann/exercises/01_offsets.ipynb": answer()}, {"ann": ["exercises/01_offsets.ipynb"]}),
        ({"ann/01_offsets.ipynb": answer()}, {"ann": ["01_offsets.ipynb"]}),
        ({"ann/week 1/mine/01_offsets.ipynb": answer()}, {"ann": ["week 1/mine/01_offsets.ipynb"]}),
        ({"ann.ipynb": answer()}, {"ann": ["ann.ipynb"]}),
        ({"ann_01_offsets.ipynb": answer()}, {"ann": ["ann_01_offsets.ipynb"]}),
        ({"01_offsets-ann (1).ipynb": answer()}, {"ann": ["01_offsets-ann (1).ipynb"]}),
        ({"01_offsets_7.ipynb": answer(), "01_offsets_8.ipynb": answer()},
         {"7": ["01_offsets_7.ipynb"], "8": ["01_offsets_8.ipynb"]}),
        ({"01_offsets.ipynb": answer()}, {"hand-ins": ["01_offsets.ipynb"]}),
        ({"ann_LATE_1234_5678_01_offsets-1.ipynb": answer()}, {"ann_1234": ["ann_LATE_1234_5678_01_offsets-1.ipynb"]}),
        ({"ann/01_offsets (1).ipynb": answer()}, {"ann": ["01_offsets (1).ipynb"]}),
        ({"ann/01_offsets-copy1.ipynb": answer()}, {"ann": ["01_offsets-copy1.ipynb"]}),
        ({"ann/01_offsets.ipynb.txt": answer()}, {"ann": ["01_offsets.ipynb.txt"]}),
        ({"ann_01_offsets.ipynb.json": answer()}, {"ann": ["ann_01_offsets.ipynb.json"]}),
        ({"ann.zip": zipped({"01_offsets.ipynb.TXT": answer()})}, {"ann": ["ann.zip/01_offsets.ipynb.TXT"]}),
        ({"ann/01_offsets.ipynb": answer(), "ann/01_offsets.py": b"", "ann/hw.pdf": b"", "ann/data": b""},
         {"ann": ["01_offsets.ipynb"]}),
        ({"ann/01 Offsets final.IPYNB": answer()}, {"ann": ["01 Offsets final.IPYNB"]}),
        ({"ann/homework.ipynb": answer()}, {"ann": ["homework.ipynb"]}),
        ({"ann/01_offsets.ipynb": b"\xef\xbb\xbf" + answer()}, {"ann": ["01_offsets.ipynb"]}),
        ({"ann/unmarked.ipynb": notebook(ANSWER, "print(1)", marked=False)}, {"ann": ["unmarked.ipynb"]}),
        *(({"ann/01_offsets.ipynb": notebook(ANSWER, marked=False).replace(b'"metadata": {}', odd)},
           {"ann": ["01_offsets.ipynb"]})
          for odd in (b'"metadata": {"nbgrader": null}', b'"metadata": null',
                      b'"metadata": {"nbgrader": {"grade_id": 3}}')),
        ({"ann.zip": zipped({"mine/01_offsets.ipynb": answer()})}, {"ann": ["ann.zip/mine/01_offsets.ipynb"]}),
        ({"ann.zip": zipped({"01_offsets.ipynb": answer()})}, {"ann": ["ann.zip/01_offsets.ipynb"]}),
        ({"ann.zip": zipped({"mine\\01_offsets.ipynb": answer()})}, {"ann": ["ann.zip/mine/01_offsets.ipynb"]}),
        ({"ann_x/all.zip": zipped({"a/b/01_offsets.ipynb": answer()})}, {"ann_x": ["all.zip/a/b/01_offsets.ipynb"]}),
        ({"ann.zip": zipped({"__MACOSX/a/._01_offsets.ipynb": b"\0", "a/01_offsets.ipynb": answer()})},
         {"ann": ["ann.zip/a/01_offsets.ipynb"]}),
        ({"ann/.ipynb_checkpoints/01_offsets-checkpoint.ipynb": answer("return 1"), "ann/01_offsets.ipynb": answer()},
         {"ann": ["01_offsets.ipynb"]}),
        # Whoever hands in the whole repository has not solved it by that.
        ({"ann/r/solutions/01_offsets.ipynb": answer("return 2"), "ann/r/notebooks/01.ipynb": answer("return 3"),
          "ann/r/exercises/01_offsets.ipynb": answer()}, {"ann": ["r/exercises/01_offsets.ipynb"]}),
        ({"ann/solutions/01_offsets.ipynb": answer()}, {"ann": ["solutions/01_offsets.ipynb"]}),
    ],
)  # fmt: skip
def test_shapes(tmp_path, files, expected):
    folder = tmp_path / "hand-ins"
    hand_in(folder, files)
    assert collected(folder) == {student: {"01_offsets": versions} for student, versions in expected.items()}
    found, strangers = discovered(folder, BOTH)
    assert "def describe_groups" in found[0].answers["01_offsets"][0].source
    assert ([each.notes for each in found], strangers) == ([[]] * len(expected), [])


def test_a_notebooks_name_counts_before_its_content(tmp_path):
    both = notebook(ANSWER, "def product_tile(a):\n    pass")
    hand_in(tmp_path, {
        "ann/03_tail_masks.ipynb": both, "ann/01_offsets.ipynb": answer(), "bob/03_tail_masks.ipynb": both,
    })  # fmt: skip
    masks = {"03_tail_masks": ["03_tail_masks.ipynb"]}
    assert collected(tmp_path) == {"ann": {"01_offsets": ["01_offsets.ipynb"], **masks}, "bob": masks}


def test_one_notebook_may_hold_several_answers(tmp_path):
    hand_in(tmp_path, {"ann.ipynb": notebook(ANSWER, "def product_tile(a):\n    pass", marked=False)})
    assert collected(tmp_path) == {"ann": {"01_offsets": ["ann.ipynb"], "03_tail_masks": ["ann.ipynb"]}}


HOLE = f'{PREFIX}raise NotImplementedError("TODO 01: later")'


NBGRADERS = f"{PREFIX}# YOUR CODE HERE\n    raise NotImplementedError()"


@pytest.mark.parametrize(
    ("sources", "marked", "expected"),
    [
        ((HOLE, ANSWER), 2, [(2, HOLE), (3, ANSWER)]),
        ((NBGRADERS, ANSWER), 2, [(2, NBGRADERS), (3, ANSWER)]),
        ((ANSWER, HOLE), 1, [(3, HOLE), (2, ANSWER)]),
        ((PREFIX + "return 1", ANSWER), 2, [(2, PREFIX + "return 1"), (3, ANSWER)]),
        ((PREFIX + "return 1", PREFIX + "return 2", ANSWER), 3,
         [(3, PREFIX + "return 2"), (2, PREFIX + "return 1"), (4, ANSWER)]),
        ((PREFIX + "return 1", PREFIX + "return 2", ANSWER), 2,
         [(2, PREFIX + "return 1"), (3, PREFIX + "return 2"), (4, ANSWER)]),
        (("x = 1", ANSWER, "# def describe_groups(sizes)"), 3, [(None, ANSWER)]),
        ((ANSWER, ANSWER), 2, [(None, ANSWER)]),
        (("def described_groups(sizes): pass",), 1, [(None, "def described_groups(sizes): pass")]),
    ],
)  # fmt: skip
def test_every_cell_that_defines_the_function_is_a_version(tmp_path, sources, marked, expected):
    hand_in(tmp_path, {"ann/01_offsets.ipynb": notebook(*sources, marked=marked)})
    (found,), _ = discovered(tmp_path, BOTH)
    name = "01_offsets.ipynb"
    wanted = [(name if cell is None else f"{name}, cell {cell}", source.strip()) for cell, source in expected[::-1]]
    assert [(each.where, each.source.strip()) for each in found.answers["01_offsets"]] == wanted
    assert cells.of_notebook(tmp_path / "ann" / name, OFFSETS.function).strip() == wanted[0][1]


def test_of_several_notebooks_no_cell_with_a_hole_takes_anothers_place(tmp_path):
    names = [f"01_offsets ({i}).ipynb" for i in (4, 3, 2, 1)]
    for i, name in enumerate(names):
        hand_in(tmp_path / "ann", {name: notebook(f"{HOLE}  # {i}", f"{ANSWER}# {i}", marked=2)})
    (found,), _ = discovered(tmp_path, BOTH)
    assert [each.where for each in found.answers["01_offsets"]] == [f"{name}, cell 3" for name in names]
    assert found.skipped == {"01_offsets": 4}


def test_versions_the_handed_out_name_first_and_no_text_twice(tmp_path):
    hand_in(tmp_path, {
        "ann/01_offsets (1).ipynb": answer("return 1"),
        "ann/deep/01_offsets.ipynb": answer("return 2"),
        "ann/01_offsets.ipynb": answer("return 3"),
        "ann/01_offsets (2).ipynb": answer("return 3"),
        "ann/0/01_offsets.ipynb": b"{",
        "ann/01_offsets-a.ipynb": answer("return 4"),
        "ann/01_offsets-b.ipynb": answer("return 5"),
    })  # fmt: skip
    (found,), _ = discovered(tmp_path, BOTH)
    places = [each.where for each in found.answers["01_offsets"]]
    assert places == ["01_offsets.ipynb", "deep/01_offsets.ipynb", "01_offsets (1).ipynb", "01_offsets-a.ipynb"]
    assert found.skipped == {"01_offsets": 2}


@pytest.mark.parametrize(
    ("names", "looked_at"),
    [
        ([f"01_offsets ({i}).ipynb" for i in range(12)], ["(11)", "(10)", "(9)", "(8)"]),
        (["01_offsets.ipynb", *(f"ann_1234_{5678 - i}_01_offsets-{i}.ipynb" for i in range(1, 6))],
         ["01_offsets", "-5", "-4", "-3"]),
        ([f"7th-try-{i}.ipynb" for i in (1, 10, 2, 3, 9)], ["10", "9", "3", "2"]),
        ([f"01_offsets_{letter}.ipynb" for letter in "daceb"], ["_b", "_e", "_c", "_a"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_of_many_copies_the_newest_are_looked_at(tmp_path, names, looked_at, packed):
    files = {name: answer(f"return {i}") for i, name in enumerate(names)}
    if packed:
        infos = [zipfile.ZipInfo(name, (2026, 11, 20, 12, i, 0)) for i, name in enumerate(names)]
        hand_in(tmp_path, {"ann.zip": zipped(dict(zip(infos, files.values())))})
    else:
        hand_in(tmp_path / "ann", files)
        for i, name in enumerate(names):
            os.utime(tmp_path / "ann" / name, (1e9 + i, 1e9 + i))
    (found,), _ = discovered(tmp_path, BOTH)
    places = [each.where for each in found.answers["01_offsets"]]
    assert len(places) == len(looked_at)
    assert all(part in place for part, place in zip(looked_at, places)), places


def test_a_date_that_is_none_and_a_number_without_end_cost_nothing(tmp_path):
    name = f"01_offsets ({'9' * 900}).ipynb"
    hand_in(tmp_path, {"ann.zip": zipped({zipfile.ZipInfo(name, (2107, 15, 0, 31, 63, 62)): answer()})})
    assert collected(tmp_path) == {"ann": {"01_offsets": [f"ann.zip/{name}"]}}


def test_one_name_however_its_letters_are_composed_or_encoded(tmp_path):
    for name in ("Zo\u00eb", "Zoe\u0308"):
        hand_in(tmp_path, {f"{name}/01_offsets.ipynb": answer(f"return {len(name)}")})
    hand_in(tmp_path, {"Zoe\u0308_03_tail_masks.ipynb": notebook("def product_tile(): pass")})
    for name in (b"Fran\xe7ois", b"Fran\xe8ois"):
        hand_in(tmp_path, {f"{os.fsdecode(name)}/01_offsets.ipynb": answer()})
    found = collected(tmp_path)
    assert list(found) == ["Fran\\xe7ois", "Fran\\xe8ois", "Zo\u00eb"]
    assert list(map(len, found["Zo\u00eb"].values())) == [2, 1]


def test_moodles_folders_of_one_student_are_one_students(tmp_path):
    hand_in(tmp_path, {
        "Ann Lee_123_assignsubmission_file_/01_offsets.ipynb": answer(),
        "Ann Lee_123_assignsubmission_onlinetext_/onlinetext.html": b"<p>see file",
        "Ann Lee_123_assignsubmission_file_03_tail_masks.ipynb": notebook("def product_tile(): pass"),
        "Ann Lee_124_assignsubmission_file_/01_offsets.ipynb": answer(),
    })  # fmt: skip
    found, _ = discovered(tmp_path, BOTH)
    assert [(each.student, list(each.answers), each.notes) for each in found] == [
        ("Ann Lee_123", ["01_offsets", "03_tail_masks"], []), ("Ann Lee_124", ["01_offsets"], []),
    ]  # fmt: skip


CANVAS = {f"{who}_{i}234_{i}678_01_offsets.ipynb": answer(f"return {i}") for i, who in enumerate(("ann", "bob"), 1)}


MOODLE = {f"{who}_{i}_assignsubmission_file_/a.ipynb": answer() for i, who in enumerate(("ann", "bob", "cy", "di"))}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"subs.zip": zipped(CANVAS)}, "subs.zip: holds several hand-ins (ann_1234, bob_2234): unpack it"),
        ({"subs.zip": zipped(MOODLE)}, "several hand-ins (ann_0, bob_1, cy_2, …): unpack it"),
        ({f"subs/{name}": data for name, data in CANVAS.items()}, "bob_2234): grade that folder by itself"),
        ({"subs/all.zip": zipped(CANVAS)}, "bob_2234): grade that folder by itself"),
        # One person's, as often as they handed in.
        ({"subs.zip": zipped({**dict([*CANVAS.items()][:1]), "ann_LATE_1234_9999_01_offsets-1.ipynb": ANSWER})}, None),
        ({"eve_3234_3678_hw.zip": zipped(dict([*CANVAS.items()][:1]))}, None),
    ],
)
def test_a_class_in_one_zip_file_is_no_student(tmp_path, files, says):
    hand_in(tmp_path, files)
    (found,), _ = discovered(tmp_path, BOTH)
    if says is None:
        assert found.answers["01_offsets"][0].source
    else:
        assert not found.answers
        (note,) = found.notes
        assert note.endswith(f"{says}; if they are versions of one student's, add --one-student subs")


def test_what_is_no_submission_is_named(tmp_path):
    ours = {"grades.csv": b"", "scores/ann/results.json": b""}
    hand_in(tmp_path, {"roster.csv": b"", ".DS_Store": b"", "ann/01_offsets.ipynb": answer(), **ours})
    found, strangers = discovered(tmp_path, BOTH, ignore=[tmp_path / "grades.csv", tmp_path / "scores"])
    assert ([each.student for each in found], strangers) == (["ann"], ["roster.csv"])


def test_a_class_is_not_held_in_memory_all_at_once(tmp_path):
    hand_in(tmp_path, {f"s{i}/01_offsets.ipynb": notebook("# " + "x" * (4 << 20), ANSWER) for i in range(6)})
    tracemalloc.start()
    found, _ = discovered(tmp_path, BOTH)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 6
    assert peak < 20 << 20, "of 24 MB that were handed in"


def test_no_link_is_followed(tmp_path):
    hand_in(tmp_path / "others", {"01_offsets.ipynb": answer(), "all.zip": zipped({"01_offsets.ipynb": answer()})})
    hand_in(tmp_path / "in", {"ann/readme.txt": b""})
    links = ["eve", "mal.ipynb", "ann/01_offsets.ipynb", "ann/exercises", "ann/all.zip", "ann/loop.ipynb"]
    for link in links:
        target = tmp_path / "others" if "." not in link else tmp_path / "others" / f"01_offsets{Path(link).suffix}"
        (tmp_path / "in" / link).symlink_to((tmp_path / "in" / link) if "loop" in link else target)
    found, _ = discovered(tmp_path / "in", BOTH)
    assert [each.student for each in found] == ["ann", "eve", "mal"]
    assert not any(answer.source for each in found for versions in each.answers.values() for answer in versions)
    assert found[0].answers["01_offsets"] == [
        Answer("01_offsets.ipynb", refused="is a link, and links are not followed")
    ]
    assert len(found[0].notes) == 3
    assert found[1].notes == ["is a link, and links are not followed"]


# One entry is one student

TOO_HIGH = {
    "folders": ("submitted", "submitted/{}/01_offsets.ipynb"),
    "nbgrader's folders": ("submitted", "submitted/{}/01_offsets/01_offsets.ipynb"),
    "copies of the repository": ("submitted", "submitted/{}/my_course/exercises/01_offsets.ipynb"),
    "folders two levels down": ("course", "course/week 2/hand-ins/{}/ps1/01_offsets.ipynb"),
    "notebooks of any name": ("submitted", "submitted/{}/homework.ipynb"),
    "archives": ("all", "all/{}.zip"),
    "folders in an archive": ("all", "all.zip"),
}


@pytest.mark.parametrize(("entry", "place"), TOO_HIGH.values(), ids=TOO_HIGH)
@pytest.mark.parametrize("beside", [None, "{}/source/01_offsets/01_offsets.ipynb", "{}/01_offsets.ipynb"])
def test_a_folder_a_level_too_high_is_refused(tmp_path, entry, place, beside):
    names = ["ann", "bob", "4"]
    files = {place.format(who): answer(f"return '{who}'") for who in names}
    if place == "all.zip":
        files = {place: zipped({f"x/{who}/01_offsets.ipynb": answer(who) for who in names})}
    elif place.endswith(".zip"):
        files = {name: zipped({"x/01_offsets.ipynb": data}) for name, data in files.items()}
    if beside and place != "all.zip":
        files[beside.format(entry)] = notebook(HOLE)
    hand_in(tmp_path, {**files, "cy/01_offsets.ipynb": answer("return 3")})
    found = {each.student: each for each in discovered(tmp_path, BOTH)[0]}
    assert list(found) == sorted([entry, "cy"])
    assert list(found["cy"].answers) == ["01_offsets"]
    assert found[entry].one_level_too_high
    assert found[entry].answers == {}
    (note,) = found[entry].notes
    shown = ", ".join(name + (".zip" if place == "all/{}.zip" else "") for name in sorted(names))
    assert f"holds several hand-ins ({shown}): " in note
    assert ("unpack it" if place == "all.zip" else "grade that folder by itself") in note
    assert note.endswith(f"; if they are versions of one student's, add --one-student {entry}")


ONE = {
    "copies": ["01_offsets.ipynb", "01_offsets (1).ipynb", "01_offsets-Copy2.ipynb", "01_offsets_final.ipynb"],
    "other names": ["homework.ipynb", "Untitled.ipynb", "alice_01_offsets.ipynb", "bob_01_offsets.ipynb"],
    "folders inside each other": ["01_offsets.ipynb", "old/01_offsets.ipynb", "old/older/01_offsets.ipynb"],
    "a zip file beside": ["01_offsets.ipynb", "hand in.zip"],
    "the repository": [
        "r/exercises/01_offsets.ipynb", "r/my_course/exercises/01_offsets.ipynb", "r/solutions/01_offsets.ipynb",
        "r/my_course/exercises/01_offsets.yours.ipynb", "r/my_course/exercises/01_offsets/01_offsets.ipynb",
    ],
    "a folder for each exercise": ["offsets/01_offsets.ipynb", "masks/03_tail_masks.ipynb"],
    "a platform's names": ["ann_1234_5678_01_offsets.ipynb", "ann_LATE_1234_5679_01_offsets-1.ipynb"],
}  # fmt: skip


@pytest.mark.parametrize("names", ONE.values(), ids=ONE)
def test_versions_are_one_students(tmp_path, names):
    files = {name: answer(f"return {i}") if name.endswith("ipynb") else b"" for i, name in enumerate(names)}
    files |= {name: zipped({"x/01_offsets.ipynb": answer()}) for name in names if name.endswith(".zip")}
    hand_in(tmp_path / "lee_ann_123", files)
    (found,), _ = discovered(tmp_path, BOTH)
    assert (found.student, found.notes) == ("lee_ann_123", [])
    assert found.answers["01_offsets"]


def test_folders_with_nothing_written_or_readable_are_no_hand_ins(tmp_path):
    """A student may keep the exercises as they were handed out beside the work."""
    hand_in(tmp_path / "ann", {
        "work/01_offsets.ipynb": answer(), "clone/exercises/01_offsets.ipynb": notebook(HOLE),
        "broken/01_offsets.ipynb": b"{", "text/01_offsets.py": b"",
    })  # fmt: skip
    (found,), _ = discovered(tmp_path, BOTH)
    assert found.answers["01_offsets"][0].where == "work/01_offsets.ipynb"


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


@pytest.mark.parametrize("name", ["01_offsets", "01_offsets_final", "homework", "deep/01_offsets"])
def test_files_beside_a_folder_never_displace_its_answers(tmp_path, name):
    """Anybody may name a file after somebody else."""
    flood = {f"anna_01_offsets ({i}).ipynb": answer(f"return {i}") for i in range(6)}
    hand_in(tmp_path, {f"anna/{name}.ipynb": answer("right"), **flood})
    (found,), _ = discovered(tmp_path, BOTH)
    places = [each.where for each in found.answers["01_offsets"]]
    assert places == [f"{name}.ipynb", *(f"anna_01_offsets ({i}).ipynb" for i in (5, 4, 3))]
    assert found.skipped == {"01_offsets": 3}


def test_no_name_takes_long_to_compare(tmp_path):
    names = ["1_" * 100, "a." + "_" * 200, "(" * 200, *(f"{i}" for i in range(3_000))]
    hand_in(tmp_path / "ann", {f"{name}/01_offsets.ipynb": answer(str(i)) for i, name in enumerate(names)})
    started = time.process_time()
    (found,), _ = discovered(tmp_path, BOTH)
    assert found.one_level_too_high
    assert time.process_time() - started < 10
