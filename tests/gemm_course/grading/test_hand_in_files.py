"""Files that are dangerous or costly to read are refused with a reason, and cost nobody else anything."""

from __future__ import annotations

import io
import os
import stat
import zipfile

import pytest

from gemm_course.grading import grades, hand_in_files
from hand_ins import ANSWER, BOTH, OFFSETS, answer, cache_in, discovered, hand_in, notebook, zipped


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
        ("eve.zip", zipped({"../../evil.ipynb": answer()}), "outside its folder: ../../evil.ipynb"),
        ("eve.zip", zipped({"/evil.ipynb": answer()}), "outside its folder"),
        ("eve.zip", zipped({"a\\..\\..\\evil.ipynb": answer()}), "outside its folder"),
        ("eve.zip", zipped({"C:\\evil.ipynb": answer()}), "outside its folder"),
        ("eve.zip", zipped({"01_offsets.ipynb": bytes(17 << 20)}), "unpacks to 17 MB; a notebook may have 16"),
        ("eve.zip", bomb(5), "unpack to more than 64 MB"),
        ("eve.zip", zipped({f"{i}": b"" for i in range(hand_in_files.MAX_FILES + 1)}), "has 20,001 files"),
        ("eve.zip", zipped({"inner.zip": zipped({"01_offsets.ipynb": answer()})}), "a zip file in a zip file"),
        ("eve.zip", link_in_zip(b"/etc/passwd"), "is a link"),
        ("eve.zip", encrypted(), "is encrypted"),
        ("eve.zip", damaged(), "cannot be unpacked"),
        ("eve.zip", lzma(), "other than deflate"),
        ("eve.zip", b"PK but not a zip", "cannot be read as a zip file (BadZipFile)"),
        ("eve/x.zip", b"PK but not a zip", "x.zip: cannot be read as a zip file"),
        ("eve.tar.gz", b"", "is not a zip file: unpack it"),
        ("eve/hw.tar.gz", b"", "hw.tar.gz: is not a zip file: unpack it"),
        ("eve/mine/01_offsets.rar", b"", "mine/01_offsets.rar: is not a zip file: unpack it"),
        ("eve/hw.7z", b"", "hw.7z: is not a zip file: unpack it"),
        ("eve.zip", zipped({"hw.rar": b""}), "eve.zip/hw.rar: is an archive in a zip file, and is not opened"),
        ("eve/01_offsets.py", ANSWER.encode(), "01_offsets.py: is not a notebook: hand in the .ipynb file"),
        ("eve/01_offsets", answer(), "01_offsets: is not a notebook: hand in the .ipynb file"),
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
        ("eve/01_offsets.ipynb", b"[" * 200_000, "its lists are nested too deeply"),
        ("eve/01_offsets.ipynb", b'{"cells": 3}', "it is JSON without a notebook's list of cells"),
        ("eve/01_offsets.ipynb", b'{"worksheets": []}', "it is JSON without a notebook's list of cells, each with"),
        ("eve/01_offsets.ipynb", b'{"cells": ' + b"9" * 5000 + b"}", "a number in it has too many digits"),
        ("eve/01_offsets.ipynb", notebook("print(1)", marked=False), "no cell that defines describe_groups"),
        ("eve/01_offsets.ipynb", notebook(ANSWER + "#" * 200_000), "the answer's cell has 195 kB; 100 are allowed"),
        ("eve/01_offsets.ipynb", notebook(" "), "the answer's cell is empty"),
        ("eve/" + "deep/" * 14 + "01_offsets.ipynb", answer(), "more than 12 folders deep"),
    ],
)  # fmt: skip
def test_refused_with_a_reason_that_costs_nobody_else(tmp_path, name, data, says):
    folder = tmp_path / "in" / "hand-ins"
    hand_in(folder, {name: data, "ann/01_offsets.ipynb": answer()})
    (ann, eve), _ = discovered(folder, BOTH)
    assert [each.where for each in ann.answers["01_offsets"]] == ["01_offsets.ipynb"]
    grade = grades.grade([eve], [OFFSETS], 0, cache_in(tmp_path), 1, lambda *_: None)[0]
    assert (grade.student, grade.status, grade.points) == ("eve", "refused", 0)
    assert says in grade.message
    assert sorted(path.name for path in tmp_path.rglob("*evil*")) == []


def test_a_huge_file_is_not_read(tmp_path):
    for name, says in (("01_offsets.ipynb", "a notebook may have 16"), ("all.zip", "an archive may have 64")):
        hand_in(tmp_path, {f"{name}-of/{name}": b""})
        os.truncate(tmp_path / f"{name}-of" / name, 1 << 40)
        (file,) = hand_in_files.read_folder(tmp_path / f"{name}-of")
        assert (file.data, file.refused) == (b"", f"has 1,048,576 MB; {says}")


def test_a_folder_full_of_notebooks_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(hand_in_files, "MAX_TOTAL_MB", 1)
    hand_in(tmp_path, {f"{i}.ipynb": bytes(300 << 10) for i in range(9)})
    *read, last = hand_in_files.read_folder(tmp_path)
    assert [file.where for file in read] == ["0.ipynb", "1.ipynb", "2.ipynb", "3.ipynb"]
    assert last.refused == "more than 1 MB of notebooks: the others were not read"


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "01_offsets.ipynb")
    assert hand_in_files.read_folder(tmp_path) == [
        hand_in_files.File("01_offsets.ipynb", refused="is not a regular file")
    ]
