"""A file is written as a whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from course_kernels import files


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("data", "stored"), [("a\r\n–", "a\r\n–".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")])
def test_the_file_holds_the_data_and_nothing_else_is_left(tmp_path, data, stored):
    path = tmp_path / "file.json"
    for _ in range(2):
        files.write_atomically(path, data)
        assert path.read_bytes() == stored
        assert os.listdir(tmp_path) == ["file.json"]


def test_permissions(tmp_path):
    path, private = tmp_path / "file", tmp_path / "private"
    before = os.umask(0o027)
    try:
        files.write_atomically(path, "new")
        files.write_atomically(str(private), "new", mode=0o600)
    finally:
        os.umask(before)
    assert (mode(path), mode(private)) == (0o640, 0o600)
    path.chmod(0o604)
    files.write_atomically(path, "again")
    assert mode(path) == 0o604, "an existing file keeps its own"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, error):
    def refuse(*_):
        raise error

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(files.os, "replace", refuse)
    with pytest.raises(type(error)):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]
