"""`course grade`: whatever is handed in costs its own points only, and the same answers get the same grades."""

from __future__ import annotations

import contextlib
import csv
import importlib.metadata
import io
import json
import os
import pty
import resource
import signal
import stat
import subprocess
import sys
import time
import tracemalloc
import uuid
import zipfile
from pathlib import Path

import pytest

from gemm_course.cli import app as command
from gemm_course.exercises import manifest
from gemm_course.grading import archives as unpack
from gemm_course.grading import grades as grading
from gemm_course.grading import result_cache as journal
from gemm_course.grading import submissions as handed_in
from gemm_course.grading.result_cache import Journal
from gemm_course.grading.submissions import Answer, Submission
from gemm_course.judging import failures as endings
from gemm_course.judging import pool as judges
from gemm_course.judging.results import NOT_ON_GPU, ONLY_ON_GPU
from gemm_course.notebook_files import cells as submission

OFFSETS, MASKS = manifest.find("01_offsets") + manifest.find("03_tail_masks")
BOTH = (OFFSETS, MASKS)
PREFIX = "def describe_groups(sizes, total_m):\n    "
ANSWER = PREFIX + "return sizes\n"


def notebook(*sources, marked=True):
    """A stored notebook; True marks its last code cell as the answer's, a number that cell from the end."""
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["text"]}]
    for source in sources:
        cells.append({"cell_type": "code", "metadata": {}, "source": source.splitlines(True), "outputs": []})
    if marked:
        cells[-int(marked)]["metadata"]["nbgrader"] = {"grade_id": "answer"}
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


def answer(text="return sizes"):
    return notebook("import torch", PREFIX + text)


def zipped(files):
    """The bytes of a zip file: names, or ZipInfos, to contents."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in files.items():
            made.writestr(name, data)
    return stream.getvalue()


def hand_in(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1e9, 1e9))


def collected(folder):
    """{student: {exercise: [the versions' places]}}, without what nobody handed in."""
    found, _ = handed_in.collect(folder, BOTH)
    return {
        each.student: {name: [a.where for a in versions] for name, versions in each.answers.items()} for each in found
    }


# The shapes in which people hand in


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
    found, strangers = handed_in.collect(folder, BOTH)
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
    (found,), _ = handed_in.collect(tmp_path, BOTH)
    name = "01_offsets.ipynb"
    wanted = [(name if cell is None else f"{name}, cell {cell}", source.strip()) for cell, source in expected[::-1]]
    assert [(each.where, each.source.strip()) for each in found.answers["01_offsets"]] == wanted
    assert submission.of_notebook(tmp_path / "ann" / name, OFFSETS.function).strip() == wanted[0][1]


def test_of_several_notebooks_no_cell_with_a_hole_takes_anothers_place(tmp_path):
    holes = {f"ann/{i}/01_offsets.ipynb": notebook(f"{HOLE}  # {i}", f"{ANSWER}# {i}", marked=2) for i in range(4)}
    hand_in(tmp_path, holes)
    (found,), _ = handed_in.collect(tmp_path, BOTH)
    assert [each.where for each in found.answers["01_offsets"]] == [f"{i}/01_offsets.ipynb, cell 3" for i in range(4)]
    assert found.more == {"01_offsets": 4}


@pytest.mark.parametrize(
    ("cell", "runs"),
    [
        (f"{ANSWER}check(describe_groups)\nprint(\n  offs)\nx = 1", f"{ANSWER}\n\n\nx = 1"),
        (f"{ANSWER}result = check(describe_groups)", f"{ANSWER}\n"),
        (f"display(batch)\n{ANSWER}", f"\n{ANSWER}"),
        (f"{ANSWER}x = 1; print(x)", None),
        (f"def check(x):\n    return x\nx = check(1)\n{ANSWER}", None),
        (f"{ANSWER}x = sum([1])\nprint.x()\nif x:\n    print(x)", None),
        (f"{ANSWER}\x0c\nprint(offs)", None),
        (f"{ANSWER})\nprint(offs)", None),
    ],
)
def test_what_only_looks_at_an_answer_does_not_run(tmp_path, cell, runs):
    hand_in(tmp_path, {"01_offsets.ipynb": notebook(cell)})
    found = submission.of_notebook(tmp_path / "01_offsets.ipynb", OFFSETS.function)
    assert found.splitlines() == (cell if runs is None else runs).splitlines()


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
    (found,), _ = handed_in.collect(tmp_path, BOTH)
    places = [each.where for each in found.answers["01_offsets"]]
    assert places == ["01_offsets.ipynb", "deep/01_offsets.ipynb", "01_offsets (1).ipynb", "01_offsets-a.ipynb"]
    assert found.more == {"01_offsets": 2}


@pytest.mark.parametrize(
    ("names", "looked_at"),
    [
        ([f"01_offsets ({i}).ipynb" for i in range(12)], ["(11)", "(10)", "(9)", "(8)"]),
        (["01_offsets.ipynb", *(f"ann_1234_{5678 - i}_01_offsets-{i}.ipynb" for i in range(1, 6))],
         ["01_offsets", "-5", "-4", "-3"]),
        ([f"7th-try-{i}.ipynb" for i in (1, 10, 2, 3, 9)], ["10", "9", "3", "2"]),
        ([f"{place}/01_offsets.ipynb" for place in "dabec"], ["c/", "e/", "b/", "a/"]),
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
    (found,), _ = handed_in.collect(tmp_path, BOTH)
    places = [each.where for each in found.answers["01_offsets"]]
    assert len(places) == len(looked_at)
    assert all(part in place for part, place in zip(looked_at, places)), places


def test_a_date_that_is_none_and_a_number_without_end_cost_nothing(tmp_path):
    name = f"01_offsets ({'9' * 5000}).ipynb"
    hand_in(tmp_path, {"ann.zip": zipped({zipfile.ZipInfo(name, (2107, 15, 0, 31, 63, 62)): answer()})})
    assert collected(tmp_path) == {"ann": {"01_offsets": [f"ann.zip/{name}"]}}


# Names of people


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
    found, _ = handed_in.collect(tmp_path, BOTH)
    assert [(each.student, list(each.answers), each.notes) for each in found] == [
        ("Ann Lee_123", ["01_offsets", "03_tail_masks"], []), ("Ann Lee_124", ["01_offsets"], []),
    ]  # fmt: skip


CANVAS = {f"{who}_{i}234_{i}678_01_offsets.ipynb": answer(f"return {i}") for i, who in enumerate(("ann", "bob"), 1)}
MOODLE = {f"{who}_{i}_assignsubmission_file_/a.ipynb": answer() for i, who in enumerate(("ann", "bob", "cy", "di"))}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"subs.zip": zipped(CANVAS)}, "subs.zip: holds the work of several people (ann_1234, bob_2234): unpack it"),
        ({"subs.zip": zipped(MOODLE)}, "several people (ann_0, bob_1, cy_2, …): unpack it"),
        ({f"subs/{name}": data for name, data in CANVAS.items()}, "bob_2234): grade that folder by itself"),
        ({"subs/all.zip": zipped(CANVAS)}, "bob_2234): grade that folder by itself"),
        # One person's, as often as they handed in.
        ({"subs.zip": zipped({**dict([*CANVAS.items()][:1]), "ann_LATE_1234_9999_01_offsets-1.ipynb": ANSWER})}, None),
        ({"eve_3234_3678_hw.zip": zipped(dict([*CANVAS.items()][:1]))}, None),
    ],
)
def test_a_class_in_one_zip_file_is_no_student(tmp_path, files, says):
    hand_in(tmp_path, files)
    (found,), _ = handed_in.collect(tmp_path, BOTH)
    if says is None:
        assert found.answers["01_offsets"][0].source
    else:
        assert not found.answers
        (note,) = found.notes
        assert note.endswith(says)


def test_what_is_no_submission_is_named(tmp_path):
    ours = {"grades.csv": b"", "scores/ann/results.json": b""}
    hand_in(tmp_path, {"roster.csv": b"", ".DS_Store": b"", "ann/01_offsets.ipynb": answer(), **ours})
    found, strangers = handed_in.collect(tmp_path, BOTH, ignore=[tmp_path / "grades.csv", tmp_path / "scores"])
    assert ([each.student for each in found], strangers) == (["ann"], ["roster.csv"])


# What is refused


def link_in_zip(target):
    info = zipfile.ZipInfo("01_offsets.ipynb")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zipped({info: target})


def encrypted():
    data = bytearray(zipped({"01_offsets.ipynb": answer()}))
    data[data.index(b"PK\1\2") + 8] |= 1
    return bytes(data)


def damaged():
    data = bytearray(zipped({"01_offsets.ipynb": answer()}))
    data[60] ^= 255
    return bytes(data)


def lzma():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as made:
        made.writestr("01_offsets.ipynb", answer())
    return stream.getvalue()


def bomb(count):
    return zipped({f"{i}/01_offsets.ipynb": bytes(15 << 20) for i in range(count)})


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("eve.zip", zipped({"../../evil.ipynb": answer()}), "outside of its folder: ../../evil.ipynb"),
        ("eve.zip", zipped({"/evil.ipynb": answer()}), "outside of its folder"),
        ("eve.zip", zipped({"a\\..\\..\\evil.ipynb": answer()}), "outside of its folder"),
        ("eve.zip", zipped({"C:\\evil.ipynb": answer()}), "outside of its folder"),
        ("eve.zip", zipped({"01_offsets.ipynb": bytes(17 << 20)}), "unpacks to 17 MB; a notebook may have 16"),
        ("eve.zip", bomb(5), "unpack to more than 64 MB"),
        ("eve.zip", zipped({f"{i}": b"" for i in range(unpack.MAX_FILES + 1)}), "holds 20,001 files"),
        ("eve.zip", zipped({"inner.zip": zipped({"01_offsets.ipynb": answer()})}), "a zip file in a zip file"),
        ("eve.zip", link_in_zip(b"/etc/passwd"), "is a link"),
        ("eve.zip", encrypted(), "is encrypted"),
        ("eve.zip", damaged(), "cannot be unpacked"),
        ("eve.zip", lzma(), "other than deflate"),
        ("eve.zip", b"PK but not a zip", "cannot be read as a zip file (BadZipFile)"),
        ("eve/x.zip", b"PK but not a zip", "x.zip: cannot be read as a zip file"),
        ("eve.tar.gz", b"", "is no zip file: unpack it"),
        ("eve/hw.tar.gz", b"", "hw.tar.gz: is no zip file: unpack it"),
        ("eve/mine/01_offsets.rar", b"", "mine/01_offsets.rar: is no zip file: unpack it"),
        ("eve/hw.7z", b"", "hw.7z: is no zip file: unpack it"),
        ("eve.zip", zipped({"hw.rar": b""}), "eve.zip/hw.rar: is an archive in a zip file, which is not opened"),
        ("eve/01_offsets.py", ANSWER.encode(), "01_offsets.py: is no notebook: the .ipynb file is wanted"),
        ("eve/01_offsets", answer(), "01_offsets: is no notebook: the .ipynb file is wanted"),
        ("eve/hw.pdf", b"%PDF", "no notebook of an exercise among 1 file: hw.pdf"),
        ("eve/hw.ipynb", notebook("print(1)", marked=False), "no notebook of an exercise among 1 file: hw.ipynb"),
        ("eve.zip", zipped({"a/": b"", **{f"a/{i}.py": b"" for i in range(6)}}),
         "no notebook of an exercise among 6 files: eve.zip/a/0.py, eve.zip/a/1.py, eve.zip/a/2.py, eve.zip/a/3.py, "
         "eve.zip/a/4.py, …"),
        ("eve/01_offsets.ipynb", b" \n", "it cannot be read as a notebook: it is empty"),
        ("eve/01_offsets.ipynb", answer()[:90], "it is not JSON, from line 1, column 89 on"),
        ("eve/01_offsets.ipynb", b"import torch\n\n" + ANSWER.encode(), "it is not JSON, from line 1, column 1 on"),
        ("eve/01_offsets.ipynb", b"\n<!DOCTYPE html><html>", "it is a web page, not the .ipynb file itself"),
        ("eve/01_offsets.ipynb", b"\xff\xfe{}", "it is not text in UTF-8"),
        ("eve/01_offsets.ipynb", b"[" * 200_000, "without the cells of a notebook (RecursionError)"),
        ("eve/01_offsets.ipynb", b'{"cells": 3}', "it is JSON without the cells of a notebook (TypeError)"),
        ("eve/01_offsets.ipynb", b'{"worksheets": []}', "it is JSON without the cells of a notebook (KeyError)"),
        ("eve/01_offsets.ipynb", notebook("print(1)", marked=False), "no cell that defines describe_groups"),
        ("eve/01_offsets.ipynb", notebook(ANSWER + "#" * 200_000), "the answer's cell has 195 kB; it may have 100"),
        ("eve/01_offsets.ipynb", notebook(" "), "the answer's cell is empty"),
        ("eve/" + "deep/" * 14 + "01_offsets.ipynb", answer(), "more than 12 folders deep"),
    ],
)  # fmt: skip
def test_refused_with_a_reason_that_costs_nobody_else(tmp_path, name, data, says):
    folder = tmp_path / "in" / "hand-ins"
    hand_in(folder, {name: data, "ann/01_offsets.ipynb": answer()})
    (ann, eve), _ = handed_in.collect(folder, BOTH)
    assert [each.where for each in ann.answers["01_offsets"]] == ["01_offsets.ipynb"]
    grade = grading.grade([eve], [OFFSETS], 0, journal_of(tmp_path), 1, lambda *_: None)[0]
    assert (grade.student, grade.status, grade.points) == ("eve", "refused", 0)
    assert says in grade.message
    assert sorted(path.name for path in tmp_path.rglob("*evil*")) == []


def test_a_huge_file_is_not_read(tmp_path):
    for name, says in (("01_offsets.ipynb", "a notebook may have 16"), ("all.zip", "an archive may have 64")):
        hand_in(tmp_path, {f"{name}-of/{name}": b""})
        os.truncate(tmp_path / f"{name}-of" / name, 1 << 40)
        (file,) = unpack.folder(tmp_path / f"{name}-of")
        assert (file.data, file.refused) == (b"", f"has 1,048,576 MB; {says}")


def test_a_folder_full_of_notebooks_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(unpack, "MAX_TOTAL_MB", 1)
    hand_in(tmp_path, {f"{i}.ipynb": bytes(300 << 10) for i in range(9)})
    *read, last = unpack.folder(tmp_path)
    assert [file.where for file in read] == ["0.ipynb", "1.ipynb", "2.ipynb", "3.ipynb"]
    assert last.refused == "more than 1 MB of notebooks: the rest is not looked at"


def test_a_class_is_not_held_in_memory_all_at_once(tmp_path):
    hand_in(tmp_path, {f"s{i}/01_offsets.ipynb": notebook("# " + "x" * (4 << 20), ANSWER) for i in range(6)})
    tracemalloc.start()
    found, _ = handed_in.collect(tmp_path, BOTH)
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
    found, _ = handed_in.collect(tmp_path / "in", BOTH)
    assert [each.student for each in found] == ["ann", "eve", "mal"]
    assert not any(answer.source for each in found for versions in each.answers.values() for answer in versions)
    assert found[0].answers["01_offsets"] == [Answer("01_offsets.ipynb", refused="is a link, which is not followed")]
    assert len(found[0].notes) == 3
    assert found[1].notes == ["eve: is a link, which is not followed"]


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "01_offsets.ipynb")
    assert unpack.folder(tmp_path) == [unpack.File("01_offsets.ipynb", refused="is no file")]


# Grades, with judges that only pretend


def journal_of(folder):
    folder.mkdir(exist_ok=True)
    return Journal(folder / "grades.csv.journal")


def outcome(points=10, message="", status=None, failure=""):
    properties = [
        {"name": "a", "title": "it is right", "points": points, "status": "pass", "message": ""},
        {"name": "b", "title": "it is quick", "points": 10 - points, "status": "fail" if failure else "skip",
         "message": failure},
    ]  # fmt: skip
    status = status or ("passed" if points == 10 else "failed")
    return {"exercise": "01", "title": "", "status": status, "properties": properties, "message": message, "seed": 0}


@pytest.fixture
def pretend(monkeypatch):
    """Judges that answer by the answer's text; returns the list of what they were asked."""
    asked, answers = [], {}

    def check_all(tasks, jobs, waiting=None):
        for task in tasks:
            asked.append((task.source, jobs))
            found = answers.get(task.source, outcome())
            if isinstance(found, list):
                found = found.pop(0)
            if isinstance(found, BaseException):
                raise found
            yield task, found

    monkeypatch.setattr(judges, "check_all", check_all)
    asked_for = type("Asked", (list,), {"answers": answers})()
    asked = asked_for
    return asked_for


def submissions(**sources):
    """One answer, or several versions of it, to exercise 01 by each student."""
    return [
        Submission(who, {"01_offsets": [Answer(f"{i}.ipynb", text) for i, text in enumerate(texts.split("|"))]})
        for who, texts in sources.items()
    ]


def graded(kept, found, seed=1, jobs=2, exercises=(OFFSETS,)):
    return grading.grade(found, exercises, seed, kept, jobs, lambda *_: None)


def test_the_best_version_counts_and_the_message_says_so(tmp_path, pretend):
    pretend.answers.update(b=outcome(6, failure="slow\nvery"), c=outcome(0, "TODO 01: do it", "todo"))
    pretend.answers.update(d=outcome(3, "slower"))
    with journal_of(tmp_path) as kept:
        one, other, third, fourth = graded(kept, submissions(ann="c|b|d", bob="d|a", cas="b", dan="d|b"))
    assert (one.points, one.status, one.message) == (
        6, "failed", "it is quick: slow very (the best of 3 versions: 1.ipynb)",
    )  # fmt: skip
    assert (other.points, other.status, other.message) == (10, "passed", "the best of 2 versions: 1.ipynb")
    assert (third.points, third.message) == (6, "it is quick: slow very")
    assert fourth.points == 6


REFUSES = "the compiler refuses it:\nline 5: acc = 1\n\n    acc has another type"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (outcome(9, failure=REFUSES), "it is quick: the compiler refuses it: line 5: acc = 1 acc has another type"),
        (outcome(0, f"{REFUSES}\n"), "the compiler refuses it: line 5: acc = 1 acc has another type"),
        (outcome(0, "a message\n" + "word " * 58), "a message " + "word " * 57 + "word"),
        (outcome(0, "some words\n" + "word " * 80), "some words " + "word " * 56 + "word…"),
        (outcome(0, "name " + "x" * 400), "name " + "x" * 294 + "…"),
    ],
)  # fmt: skip
def test_a_message_is_told_to_its_end_or_cut_between_words(tmp_path, pretend, result, expected):
    pretend.answers.update(a=result, b=result, c=outcome(0, "TODO 01: later", "todo"))
    with journal_of(tmp_path) as kept:
        alone, best = graded(kept, submissions(ann="a", bob="c|b"))
    assert alone.message == expected
    assert len(expected) <= grading.MAX_MESSAGE
    note = " (the best of 2 versions: 1.ipynb)"
    assert best.message.endswith(note), "which version counts is never cut off"
    assert len(best.message) <= grading.MAX_MESSAGE
    assert expected.startswith(best.message.removesuffix(note).removesuffix("…"))


def test_a_refused_version_does_not_stand_in_for_one_that_was_checked(tmp_path, pretend):
    pretend.answers["b"] = outcome(0, "all wrong")
    found = [Submission("ann", {"01_offsets": [Answer("x", refused="is a link"), Answer("y", "b")]})]
    with journal_of(tmp_path) as kept:
        (grade,) = graded(kept, found)
    assert (grade.status, grade.message) == ("failed", "all wrong (the best of 2 versions: y)")


def test_the_same_text_is_checked_once_for_the_whole_class(tmp_path, pretend):
    with journal_of(tmp_path) as kept:
        grades = graded(kept, submissions(ann="a", bob="a", cas="b"))
    assert [source for source, _ in pretend] == ["a", "b"]
    assert [grade.points for grade in grades] == [10, 10, 10]


def test_an_interrupted_run_goes_on_and_only_what_changed_is_checked_again(tmp_path, pretend, monkeypatch):
    pretend.answers["b"] = [KeyboardInterrupt(), outcome(3), outcome(3)]
    with journal_of(tmp_path) as kept, pytest.raises(KeyboardInterrupt):
        graded(kept, submissions(ann="a", bob="b", cas="c"))
    with journal_of(tmp_path) as kept:
        assert [g.points for g in graded(kept, submissions(ann="a", bob="b", cas="c"))] == [10, 3, 10]
    assert [source for source, _ in pretend] == ["a", "b", "b", "c"]
    del pretend[:]
    with journal_of(tmp_path) as kept:
        graded(kept, submissions(ann="a2", bob="b", cas="c"))
        assert [source for source, _ in pretend] == ["a2"]
        graded(kept, submissions(ann="a2", bob="b"), seed=2)
        assert [source for source, _ in pretend] == ["a2", "a2", "b"]
        monkeypatch.setattr(journal, "engine", lambda: "another")
        graded(kept, submissions(ann="a2"))
    assert [source for source, _ in pretend] == ["a2", "a2", "b", "a2"]


def test_a_journal_cut_short_loses_one_line(tmp_path, pretend):
    with journal_of(tmp_path) as kept:
        kept.use_seed(5)
        graded(kept, submissions(ann="a", bob="b"))
    path = kept.path
    path.write_bytes(b"\xff{\n[]\n" + path.read_bytes()[:-20])
    with journal_of(tmp_path) as kept:
        assert kept.seed == 5
        graded(kept, submissions(ann="a", bob="b", cas="c"))
    with journal_of(tmp_path) as kept:
        graded(kept, submissions(ann="a", bob="b", cas="c"))
    assert [source for source, _ in pretend] == ["a", "b", "b", "c"]


def test_what_the_clock_ended_is_checked_again_with_the_machine_to_itself(tmp_path, pretend):
    pretend.answers["a"] = [outcome(0, "still running after 6 s, so it was stopped in line 2"), outcome(10)]
    pretend.answers["b"] = [outcome(9, failure="it runs, but:\nnot compiled within 20 s"), outcome(10)]
    pretend.answers["d"] = [outcome(0, failure=f"{ONLY_ON_GPU}still running after 26 s and deaf"), outcome(10)]
    pretend.answers["e"] = [outcome(10, f"{NOT_ON_GPU}: it did not end"), outcome(10)]
    with journal_of(tmp_path) as kept:
        grades = graded(kept, submissions(ann="a", bob="b", cas="c", dan="d", eve="e"))
    assert [(grade.points, grade.message) for grade in grades] == [(10, "")] * 5
    assert list(pretend) == [*((each, 2) for each in "abcde"), *((each, 1) for each in "abde")]


def stopped(**loop):
    """What is said of an answer that the clock stopped in its line 2."""
    code = "x = a[1:]  # : the loop in line 2 makes no progress"
    error = {"kind": "endless", "type": "", "text": "", "line": 2, "code": code, "program": [0]}
    return endings.said(error | {"loop": loop or None}, OFFSETS)


STUCK = stopped(line=1, names=["x"], code="while x:  # one")
SLOW = stopped()


def test_what_no_clock_is_to_blame_for_is_checked_once(tmp_path, pretend):
    pretend.answers.update(a=outcome(0, STUCK), b=outcome(9, failure=f"{ONLY_ON_GPU}{STUCK}"))
    late = outcome(9, STUCK, failure="it runs, but:\nnot compiled within 7 s")
    pretend.answers.update(c=[outcome(0, SLOW), outcome(10)], d=outcome(0, SLOW), e=[late, outcome(10)])
    with journal_of(tmp_path) as kept:
        grades = graded(kept, submissions(ann="a", bob="b", cas="c", eve="e"))
        graded(kept, submissions(dan="d"))
    assert [grade.points for grade in grades] == [0, 9, 10, 10]
    assert list(pretend) == [("a", 2), ("b", 2), ("c", 2), ("e", 2), ("c", 1), ("e", 1), ("d", 2)], "d was alone"


CANNOT = "this cannot be checked here: install 'numpy<2.4'"


def test_what_cannot_be_checked_here_is_told_with_3_and_checked_again(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer("one"), "in/bob/01_offsets.ipynb": answer("two")})
    hand_in(tmp_path, {"in/cas.zip": b"no zip"})
    pretend.answers[f"{PREFIX}one"] = [outcome(0, CANNOT, "unchecked"), outcome(10)]
    calls = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "g.csv"), "--only", "1", "--gradescope"]
    assert command.main([*calls, str(tmp_path / "s")]) == 3
    printed = capsys.readouterr()
    assert f"1 answer: {CANNOT}\n" in printed.out
    assert printed.err == "course grade: not checked, as that cannot be done here: 1 answer\n"
    row = grades_of(tmp_path / "g.csv")["ann"]
    assert (row["status"], row["points"], row["message"]) == ("unchecked", "0", CANNOT)
    made = json.loads((tmp_path / "s" / "ann" / "results.json").read_text())
    assert made["output"] == f"0 of 1 exercises passed\n01: {CANNOT}"
    assert [test["output"] for test in made["tests"]] == ["", CANNOT]
    assert command.main([*calls, str(tmp_path / "s")]) == 1, "what is refused is left"
    assert [source.removeprefix(PREFIX) for source, _ in pretend] == ["one", "two", "one"]
    assert grades_of(tmp_path / "g.csv")["ann"]["status"] == "passed"
    assert CANNOT not in capsys.readouterr().out


def test_what_did_not_run_on_the_gpu_counts_is_told_and_checked_again(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer("one"), "in/bob/01_offsets.ipynb": answer("two")})
    remark = f"{NOT_ON_GPU}: out of memory"
    pretend.answers[f"{PREFIX}one"] = [outcome(10, remark), outcome(6, failure=f"{ONLY_ON_GPU}slow")]
    calls = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "g.csv"), "--only", "1", "--gradescope"]
    assert command.main([*calls, str(tmp_path / "s")]) == 0
    assert f"1 answer: {remark}\n" in capsys.readouterr().out
    row = grades_of(tmp_path / "g.csv")["ann"]
    assert (row["status"], row["points"], row["message"]) == ("passed", "10", remark)
    made = {who: json.loads((tmp_path / "s" / who / "results.json").read_text())["output"] for who in ("ann", "bob")}
    assert made == {"ann": f"1 of 1 exercises passed\n01: {remark}", "bob": "1 of 1 exercises passed"}
    assert command.main([*calls, str(tmp_path / "s")]) == 0
    assert [source.removeprefix(PREFIX) for source, _ in pretend] == ["one", "two", "one"]
    assert grades_of(tmp_path / "g.csv")["ann"]["points"] == "6"


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
    with journal_of(tmp_path) as kept:
        (grade,) = graded(kept, submissions(ann=versions))
    assert (grade.points, grade.status, grade.message) == expected


def test_an_answer_that_its_judge_dies_of_is_refused_and_not_remembered(tmp_path, pretend):
    pretend.answers["a"] = [None, outcome(10)]
    with journal_of(tmp_path) as kept:
        assert [(g.status, g.points) for g in graded(kept, submissions(ann="a", bob="b"))] == [
            ("refused", 0), ("passed", 10),
        ]  # fmt: skip
        assert [g.points for g in graded(kept, submissions(ann="a", bob="b"))] == [10, 10]


def test_the_engine_is_everything_that_decides(monkeypatch, tmp_path):
    import course_kernels

    def digest():
        journal.engine.cache_clear()
        return journal.engine()

    try:
        assert digest() == digest()
        (tmp_path / "course").mkdir()
        monkeypatch.setattr(course_kernels, "__file__", str(tmp_path / "__init__.py"))
        empty = digest()
        (tmp_path / "course" / "e.toml").write_text("points = 1")
        one = digest()
        (tmp_path / "course" / "e.toml").write_text("points = 2")
        two = digest()

        def version(package, found):
            if found is None and package == "numpy":
                raise importlib.metadata.PackageNotFoundError(package)
            return found if package == "numpy" else "1.0"

        numpys = []
        for found in ("2.3.5", "2.4.0", None):
            monkeypatch.setattr(importlib.metadata, "version", lambda package, found=found: version(package, found))
            numpys.append(digest())
        assert len({empty, one, two, *numpys}) == 6
    finally:
        journal.engine.cache_clear()


# The table


def read(path):
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_for_each_student_and_exercise_and_a_total(tmp_path, pretend):
    pretend.answers["b"] = outcome(6, failure="slow")
    with journal_of(tmp_path) as kept:
        grades = graded(kept, submissions(ann="a", bob="b"), seed=7, exercises=BOTH)
    grading.write_csv(tmp_path / "grades.csv", grading.rows(grades, 7))
    rows = [tuple(row.values()) for row in read(tmp_path / "grades.csv")]
    assert rows == [
        ("ann", "01_offsets", "10", "10", "passed", "", "7"),
        ("ann", "03_tail_masks", "0", "10", "missing", "nothing was handed in", "7"),
        ("ann", "total", "10", "20", "", "1 of 2 passed", "7"),
        ("bob", "01_offsets", "6", "10", "failed", "it is quick: slow", "7"),
        ("bob", "03_tail_masks", "0", "10", "missing", "nothing was handed in", "7"),
        ("bob", "total", "6", "20", "", "0 of 2 passed", "7"),
    ]
    assert tuple(read(tmp_path / "grades.csv")[0]) == grading.COLUMNS


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", " =", "\t=", "\r=", "\n+", "＝"])
def test_no_cell_is_a_formula(tmp_path, begin):
    text = begin + 'HYPERLINK("http://x"),"'
    grades = [grading.Grade(text, OFFSETS, 0, "failed", text)]
    grading.write_csv(tmp_path / "grades.csv", grading.rows(grades, 0))
    for row in read(tmp_path / "grades.csv"):
        for name in ("student", "message"):
            assert row[name].startswith("'") or row[name] == "0 of 1 passed"
            assert "\n" not in row[name]
            assert "\r" not in row[name]


def test_a_name_of_any_bytes_gets_its_row(tmp_path, pretend):
    hand_in(tmp_path / "in", {os.fsdecode(b"\xffann\x1b[31m/01_offsets.ipynb"): answer()})
    found, _ = handed_in.collect(tmp_path / "in", BOTH)
    with journal_of(tmp_path) as kept:
        grading.write_csv(tmp_path / "grades.csv", grading.rows(graded(kept, found), 0))
    assert [row["student"] for row in read(tmp_path / "grades.csv")] == ["\\xffann [31m"] * 2


def test_a_spreadsheet_takes_the_table_for_utf_8(tmp_path):
    grading.write_csv(tmp_path / "grades.csv", grading.rows([grading.Grade("Müller", OFFSETS, 0, "failed", "3 µs")], 0))
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
        grading.write_csv(path, table())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["grades.csv"]


# Judges in processes


class Mortal:
    """A judge that dies when it is asked about what kills it; `lives` counts down."""

    lives: dict[str, int]

    def wait_until_ready(self):
        if self.lives.get("start", 1) == 0:
            raise RuntimeError("the process that checks answers died")

    def check(self, task):
        if self.lives.get(task.source, 0) > 0:
            self.lives[task.source] -= 1
            raise RuntimeError("the process that checks answers died")
        return {"of": task.source}

    def end(self):
        pass

    close = end


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_judge_that_dies_costs_one_answer_at_most(monkeypatch, jobs):
    monkeypatch.setattr(judges, "JudgeProcess", type("Fresh", (Mortal,), {"lives": {"b": 1, "c": 5}}))
    tasks = [judges.Task(text, OFFSETS, text, 0) for text in "abcd"]
    found = {task.source: result and result["of"] for task, result in judges.check_all(tasks, jobs)}
    assert found == {"a": "a", "b": "b", "c": None, "d": "d"}


def test_judges_that_do_not_start_say_so(monkeypatch):
    monkeypatch.setattr(judges, "JudgeProcess", type("Dead", (Mortal,), {"lives": {"start": 0}}))
    with pytest.raises(RuntimeError, match=r"cannot be checked here.*course doctor"):
        list(judges.check_all([judges.Task("a", OFFSETS, "a", 0)], 2))


# The command


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "name the folder"),
        (["nowhere"], 2, "nowhere cannot be read as a folder of submissions: No such file or directory"),
        (["file"], 2, "file cannot be read as a folder of submissions: Not a directory"),
        (["all.zip"], 2, "all.zip cannot be read as a folder of submissions: unpack it"),
        (["empty"], 2, "empty holds no submission"),
        (["in", "--only", "01_ofsets"], 2, "did you mean 01_offsets"),
        (["in", "--jobs", "0"], 2, "from 1 to 256"),
        (["in", "--seed", "-1"], 2, "from 0 to 4294967295"),
        (["in", "--out", "nowhere/grades.csv"], 3, "nowhere/grades.csv.journal cannot be written: No such file"),
        (["in", "--out", "empty"], 3, "empty cannot be written"),
        (["in", "--gradescope", "file/x"], 3, "file/x cannot be written: Not a directory"),
    ],
)
def test_wrong_usage_has_one_line_and_a_code(tmp_path, monkeypatch, capsys, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    hand_in(tmp_path, {"file": b"", "all.zip": b"", "in/ann/01_offsets.ipynb": answer()})
    (tmp_path / "empty").mkdir()
    assert command.main(["grade", *arguments]) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.out == ""


def test_a_machine_without_triton_says_so(tmp_path, monkeypatch, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer()})

    def version(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    journal.engine.cache_clear()
    assert command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv")]) == 3
    assert capsys.readouterr().err == "course grade: answers cannot be checked here: torch is not installed\n"


def test_what_the_command_wrote_is_no_submission(tmp_path, monkeypatch, pretend, capsys):
    monkeypatch.chdir(tmp_path)
    hand_in(tmp_path, {"ann/01_offsets.ipynb": answer()})
    for _ in range(2):
        assert command.main(["grade", ".", "--only", "01", "--gradescope", "scores"]) == 0
        assert capsys.readouterr().err == ""
    assert [row["student"] for row in read(tmp_path / "grades.csv")] == ["ann", "ann"]


def test_what_another_run_wrote_is_no_submission_and_told(tmp_path, monkeypatch, pretend, capsys):
    monkeypatch.chdir(tmp_path)
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer(), "in/bob/01_offsets.ipynb": answer()})
    calls = ["grade", "in", "--only", "01"]
    assert command.main([*calls, "--gradescope", "in/scores"]) == 0
    (tmp_path / "in" / "scores" / ".DS_Store").touch()
    for more in ([], ["--gradescope", "in/others"]):
        assert command.main([*calls, *more]) == 0
        assert capsys.readouterr().err == "course grade: not submissions, passed over: scores\n"
        assert {row["student"] for row in read(tmp_path / "grades.csv")} == {"ann", "bob"}
    assert command.main([*calls, "--gradescope", "in/scores"]) == 0
    assert capsys.readouterr().err == "course grade: not submissions, passed over: others\n"


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
def test_a_students_results_are_a_students(tmp_path, pretend, capsys, files):
    for name, data in files.items():
        if name.endswith("/"):
            (tmp_path / "in" / name).mkdir(parents=True)
        else:
            hand_in(tmp_path / "in", {name: data})
    command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv"), "--only", "01"])
    assert [row["student"] for row in read(tmp_path / "grades.csv")] == ["eve", "eve"]


def test_what_nobody_handed_in_is_said_with_what_to_do(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer(), "in/bob/05_better_schedule.ipynb": answer()})
    others = [each for each in manifest.exercises() if each.id not in ("01", "05")]
    calls = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv")]
    assert command.main(calls) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-2:] == [
        f"nobody handed in an answer to {', '.join(each.name for each in others)}: "
        f"0 of {sum(each.points for each in others)} points for everybody.",
        "If they were not asked for it, grade again with --only 01 --only 05: nothing is checked again.",
    ]
    possible = sum(each.points for each in manifest.exercises())
    assert {row["of"] for row in read(tmp_path / "grades.csv") if row["exercise"] == "total"} == {str(possible)}
    assert command.main([*calls, "--only", "01", "--only", "05"]) == 0
    assert "nobody handed" not in capsys.readouterr().out
    assert len(pretend) == 2, "nothing is checked twice"
    assert {row["of"] for row in read(tmp_path / "grades.csv") if row["exercise"] == "total"} == {"20"}
    # What was asked for by name is counted, handed in or not; there is nothing to advise.
    assert command.main([*calls, "--only", "01", "--only", "03"]) == 0
    said = "nobody handed in an answer to 03_tail_masks: 0 of 10 points for everybody"
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_a_hole_is_no_answer_and_neither_is_what_cannot_be_read(tmp_path, pretend, capsys):
    hand_in(tmp_path, {
        "in/ann/01_offsets.ipynb": answer(), "in/ann/03_tail_masks.ipynb": answer("stub"), "in/gus.zip": b"no zip",
        "in/eve/04a_tile_walk.ipynb": b"{",
    })  # fmt: skip
    pretend.answers[f"{PREFIX}stub"] = outcome(0, "TODO 03: later", "todo")
    only = [part for name in ("01", "03", "04a") for part in ("--only", name)]
    assert command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv"), *only]) == 1
    said = "nobody handed in an answer to 03_tail_masks: 0 of 10 points for everybody"
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_of_what_is_not_graded_the_name_is_still_no_students(tmp_path, monkeypatch, pretend, capsys):
    hand_in(tmp_path, {"in/ann_01_offsets.ipynb": answer(), "in/ann_03_tail_masks.ipynb": answer()})
    command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv"), "--only", "01"])
    assert capsys.readouterr().out.startswith("1 student, 1 exercise")
    assert [row["student"] for row in read(tmp_path / "grades.csv")] == ["ann", "ann"]


def test_a_folders_name_does_nothing_to_the_terminal(tmp_path, capsys):
    hand_in(tmp_path / "in", {"e\x1b[31mv\re\nil\u202e/01_offsets.ipynb": b"{"})
    assert command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv"), "--only", "1"]) == 1
    printed = capsys.readouterr().out
    assert "\nrefused: e [31mv e il : 01_offsets.ipynb: it cannot be read" in printed
    assert all(letter.isprintable() for letter in printed.replace("\n", ""))


@contextlib.contextmanager
def full_disk(left):
    """Files can have so many bytes: to who writes them that is as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("left", [10, 300], ids=["for the seed", "for an answer"])
def test_a_full_disk_is_told_in_one_line(tmp_path, pretend, capsys, left):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer(), "in/bob/01_offsets.ipynb": answer("return 1")})
    out = tmp_path / "grades.csv"
    with full_disk(left):
        code = command.main(["grade", str(tmp_path / "in"), "--out", str(out), "--only", "1"])
    assert (code, capsys.readouterr().err) == (3, f"course grade: {out} cannot be written: File too large\n")


def test_of_what_cannot_be_written_the_right_file_is_told(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer()})
    calls = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv"), "--only", "1"]
    assert command.main(calls) == 0
    scores = tmp_path / "scores"
    with full_disk(300):
        code = command.main([*calls, "--gradescope", str(scores)])
    assert (code, capsys.readouterr().err) == (3, f"course grade: {scores} cannot be written: File too large\n")


def test_two_at_once_do_not_write_the_same_file(tmp_path, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer()})
    with journal_of(tmp_path):
        assert command.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "grades.csv")]) == 3
    assert "another `course grade`" in capsys.readouterr().err


def test_the_seed_of_the_first_run_is_the_next_ones(tmp_path, pretend, capsys):
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer(), "in/bob/01_offsets.ipynb": answer("return 1")})

    def seed(*more, out="grades.csv"):
        assert command.main(["grade", str(tmp_path / "in"), "--only", "1", "--out", str(tmp_path / out), *more]) == 0
        return {row["seed"] for row in read(tmp_path / out)}

    first = seed()
    assert seed() == first
    assert seed(out="other.csv") != first
    assert len(pretend) == 4
    assert seed("--seed", "12") == seed() == {"12"}
    assert f"seed {min(first)}: " in capsys.readouterr().out


RIGHT = """
    ends = torch.cumsum(sizes, 0)
    rows = torch.arange(total_m, device=sizes.device)
    group = torch.searchsorted(ends, rows, right=True)
    return ends, torch.where(group < len(sizes), group, -1)
"""
TODO = 'raise NotImplementedError("TODO 01: later")'


WRONG = RIGHT.replace("right=True", "right=False")


@pytest.fixture(scope="module")
def a_class(tmp_path_factory):
    """A class in which somebody is right and others are not, in several ways; and what the command made of it."""
    folder = tmp_path_factory.mktemp("class")
    hand_in(folder / "in", {
        "ann/exercises/01_offsets.ipynb": answer(RIGHT),
        "bob.zip": zipped({"top/01_offsets.ipynb": answer(TODO)}),
        "cas_01_offsets.ipynb": answer(WRONG),
        "dan/01_offsets (1).ipynb": answer("raise SystemExit"),
        "eve/01_offsets.ipynb": notebook("import os\n" + PREFIX + "os._exit(0)"),
        "fay/01_offsets.ipynb": answer("return torch.ones(1 << 44)"),
        "gus.zip": b"no zip",
        "hal/hw.pdf": b"",
        "ida/01_offsets.ipynb": answer(")("),
        # What runs is the cell with the answer: not the cells before it, and no output is looked at.
        "jim/01_offsets.ipynb": notebook("raise SystemExit", "1/0", PREFIX + RIGHT),
        # Nor does it matter which cell that is, and what it calls beside the function.
        "lea/01_offsets.ipynb": notebook(PREFIX + TODO, f"{PREFIX}{RIGHT}check(describe_groups)", marked=2),
        "max/.DS_Store": b"",
        "@kim/01_offsets.ipynb": answer("return 1"),
    })  # fmt: skip
    command = [sys.executable, "-m", "gemm_course.cli.app", "grade", "in", "--out", "g.csv", "--only", "01",
               "--seed", "3", "--gradescope", "scores"]  # fmt: skip
    return folder, subprocess.run(command, cwd=folder, capture_output=True, text=True)


def grades_of(path):
    return {row["student"]: row for row in read(path) if row["exercise"] == "01_offsets"}


def test_a_class_is_graded(a_class):
    folder, done = a_class
    assert (done.returncode, done.stderr) == (1, "")
    assert "13 students, 1 exercise, seed 3" in done.stdout
    assert "refused: gus: gus.zip: cannot be read as a zip file" in done.stdout
    grades = grades_of(folder / "g.csv")
    assert {name: row["status"] for name, row in grades.items()} == {
        "'@kim": "failed", "ann": "passed", "bob": "todo", "cas": "failed", "dan": "failed", "eve": "failed",
        "fay": "failed", "gus": "refused", "hal": "refused", "ida": "failed", "jim": "passed", "lea": "passed",
        "max": "missing",
    }  # fmt: skip
    points = {name: int(row["points"]) for name, row in grades.items()}
    assert (points["ann"], points["jim"], points["lea"]) == (10, 10, 10)
    assert grades["lea"]["message"] == "the best of 2 versions: 01_offsets.ipynb, cell 3"
    assert 0 < points["cas"] < 10
    assert sum(points.values()) == 30 + points["cas"]
    assert "ends the program" in grades["dan"]["message"]
    assert "cannot import os" in grades["eve"]["message"]


def test_gradescope_gets_a_test_for_each_property(a_class):
    folder, _ = a_class
    for row in grades_of(folder / "g.csv").values():
        made = json.loads((folder / "scores" / row["student"].lstrip("'") / "results.json").read_text())
        assert sum(test["score"] for test in made["tests"]) == int(row["points"])
        assert sum(test["max_score"] for test in made["tests"]) == 10
        assert (made["stdout_visibility"], made["extra_data"]) == ("hidden", {"seed": 3})
        for test in made["tests"]:
            assert set(test) == {"number", "name", "score", "max_score", "status", "output", "visibility"}
            assert test["status"] == ("passed" if test["score"] == test["max_score"] else "failed")
            assert test["status"] == "passed" or test["output"], "what is wrong is said"


def test_the_same_seed_gives_the_same_grades(a_class, tmp_path):
    folder, _ = a_class
    others = {"ann/01_offsets.ipynb": answer(RIGHT), "cas/01_offsets.ipynb": answer(f"{WRONG}# another text")}
    hand_in(tmp_path / "in", others)
    out = str(tmp_path / "g.csv")
    assert command.main(["grade", str(tmp_path / "in"), "--out", out, "--only", "1", "--seed", "3", "--jobs", "1"]) == 0
    before = grades_of(folder / "g.csv")
    assert grades_of(out) == {name: before[name] for name in ("ann", "cas")}


def marked_processes(mark):
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def interrupt_when(running, kept, lines):
    """Interrupt a command as soon as its journal has so many lines; its exit code."""
    stop = time.monotonic() + 60
    try:
        while not kept.exists() or kept.read_bytes().count(b"\n") < lines:
            assert running.poll() is None
            assert time.monotonic() < stop
            time.sleep(0.05)
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        return running.wait(10)
    finally:
        running.kill()
        running.wait()


def test_interrupted_it_ends_cleanly_and_goes_on(tmp_path, monkeypatch):
    hand_in(tmp_path / "in", {f"s{i}/01_offsets.ipynb": answer(f"{RIGHT}# {i}") for i in range(4)})
    hand_in(tmp_path / "in", {"z/01_offsets.ipynb": answer("while True: pass")})
    (tmp_path / "tmp").mkdir()
    mark = f"GRADE_TEST={uuid.uuid4()}"
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "TERM": "xterm", **dict([mark.split("=")])}
    arguments = ["grade", "in", "--out", "g.csv", "--only", "01", "--jobs", "1"]
    kept = tmp_path / "g.csv.journal"
    terminal, end = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "gemm_course.cli.app", *arguments],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=end, env=environment,
    )  # fmt: skip
    os.close(end)
    assert interrupt_when(running, kept, lines=5) == 130, "the seed and the four that are right"
    shown = b""
    with contextlib.suppress(OSError):  # what Linux says at a terminal's end
        while data := os.read(terminal, 1 << 16):
            shown += data
    os.close(terminal)
    shown = shown.decode()
    assert "Traceback" not in shown
    assert "█░" in shown
    assert "4 of 5 answers checked" in shown
    assert "the same command goes on" in shown
    assert not (tmp_path / "g.csv").exists()
    stop = time.monotonic() + 5
    while marked_processes(mark) and time.monotonic() < stop:
        time.sleep(0.05)
    assert marked_processes(mark) == []
    assert list((tmp_path / "tmp").iterdir()) == []

    before = kept.read_bytes()
    hand_in(tmp_path / "in", {"z/01_offsets.ipynb": answer("return 1")})
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 0
    assert kept.read_bytes().startswith(before)
    assert kept.read_bytes().count(b"\n") == 6
    assert [row["points"] for row in read(tmp_path / "g.csv") if row["exercise"] == "01_offsets"] == ["10"] * 4 + ["0"]
