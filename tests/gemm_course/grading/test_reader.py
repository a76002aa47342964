"""Submissions are read in confined processes. If a process ends early, its student gets a message with the reason."""

from __future__ import annotations

import json
import os

import pytest

from gemm_course.grading import reader
from gemm_course.isolation import landlock
from gemm_course.runner import fork_server
from hand_ins import PREFIX, answer, hand_in, notebook, zipped

LONG = notebook(PREFIX + "pass\n" + "x;" * (1 << 19))


def read(folder, jobs=4):
    return {each.student: each for each in reader.read_all({p.name: [p] for p in sorted(folder.iterdir())}, jobs)}


def test_nothing_that_is_handed_in_costs_anybody_else(tmp_path):
    """A long cell, a long cell in a small file, deep JSON, a pipe, a link, the journal's name; and a right one."""
    deep = b'{"cells": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    hand_in(tmp_path / "in", {
        "ann/01_offsets.ipynb": answer(), "bob/01_offsets.ipynb": LONG, "cas.zip": zipped({"01_offsets.ipynb": LONG}),
        "dan/01_offsets.ipynb": deep, "eve/x.txt": b"",
    })  # fmt: skip
    os.mkfifo(tmp_path / "in" / "eve" / "01_offsets.ipynb")
    (tmp_path / "secret.ipynb").write_bytes(answer("return 'secret'"))
    (tmp_path / "in" / "fay.ipynb").symlink_to(tmp_path / "secret.ipynb")
    found = read(tmp_path / "in")
    refused = {who: [each.answers[name][0].refused for name in each.answers] for who, each in found.items()}
    assert refused.pop("ann") == [""]
    assert found["ann"].answers["01_offsets"][0].source.endswith("return sizes")
    cell = "the answer's cell has 1,024 kB; 100 are allowed"
    assert (refused["bob"], refused["cas.zip"]) == ([cell], [cell])
    assert "cannot be read as a notebook" in refused["dan"][0]
    assert refused["eve"] == ["is not a regular file"]
    assert found["fay.ipynb"].notes == ["is a link, and links are not followed"]


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("os.kill(os.getpid(), 24)", "reading took more than 20 s and was stopped"),
        ("bytearray(2 << 30)", "reading takes more than 1,024 MB of memory"),
        ("os._exit(3)", "reading failed: the process ended with status 3"),
        ("from gemm_course.grading.class_folder import Answer, Submission\n"
         "    return Submission('ann', {'e': [Answer('a', 'x' * (17 << 20))]})",
         "the answers have 17 MB; 16 are allowed"),
        ("raise KeyError('odd')", "reading failed: KeyError: 'odd'"),
        ("open('/etc/passwd')", "/etc/passwd"), ("os.fork()", "Operation not permitted"),
    ],
)  # fmt: skip
def test_what_ends_the_process_that_reads_is_told(tmp_path, monkeypatch, does, says):
    """As if a parser did it."""
    if not landlock.landlock_version():
        pytest.skip("this kernel has no Landlock")
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer()})
    script = tmp_path / "script.py"
    script.write_text(
        f"import os, sys\nsys.path[0] = {os.path.dirname(fork_server.__file__)!r}\n"
        f"import fork_server\nsys.path[0] = {str(landlock._PACKAGE.parent)!r}\nfork_server.use_bare_packages()\n"
        "from gemm_course.grading import hand_in, reader\n"
        f"def read(*_):\n    {does}\nhand_in.read = read\nreader.main()\n"
    )
    monkeypatch.setattr(fork_server, "__file__", str(script))
    (found,) = read(tmp_path / "in").values()
    assert (found.student, found.answers) == ("ann", {})
    assert says in found.notes[0]


def test_a_class_in_an_entry_is_told_unless_the_grader_knows_better(tmp_path):
    files = {f"in/submitted/{who}/ps1/01_offsets.ipynb": answer(who) for who in ("ann", "bob")}
    hand_in(tmp_path, {**files, "in/source/ps1/01_offsets.ipynb": answer()})
    students = {path.name: [path] for path in (tmp_path / "in").iterdir()}
    found = {each.student: each for each in reader.read_all(students)}
    assert found["submitted"].answers == {}
    assert "holds several hand-ins (ann, bob): grade that folder by itself" in found["submitted"].notes[0]
    assert len(found["source"].answers["01_offsets"]) == 1
    found = {each.student: each for each in reader.read_all(students, one_student=["submitted"])}
    assert len(found["submitted"].answers["01_offsets"]) == 2


def test_what_comes_back_is_what_was_read(tmp_path):
    half = json.dumps("x = '\ud800'")
    hand_in(tmp_path, {"in/ann/01_offsets.ipynb": answer().replace(b"return sizes", half[1:-1].encode())})
    (found,) = read(tmp_path / "in").values()
    assert "\ud800" in found.answers["01_offsets"][0].source
