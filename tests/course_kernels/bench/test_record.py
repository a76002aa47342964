"""Records: a number without provenance is refused, and a record knows when its code has changed."""

from __future__ import annotations

import json
import re
import subprocess
from types import SimpleNamespace

import pytest
import torch

from course_kernels import provenance
from course_kernels.bench import record

PROVENANCE = {
    "gpu", "capability", "sms", "l2_bytes", "torch", "triton", "cuda", "python", "date", "commit", "depends_on",
    "depends_digest",
}  # fmt: skip
PATTERNS = ("course_kernels/kernels/*.py",)


def test_record_round_trip(tmp_path):
    path, about = tmp_path / "one.json", {"commit": "abc", "depends_on": [*PATTERNS]}
    record.write(path, {"rows": {"4 x 128^3": 7.5}}, about)
    assert record.read(path) == {"provenance": about, "rows": {"4 x 128^3": 7.5}}
    assert len(path.read_text().splitlines()) > 5, "one line a value, so that a change is a small diff"


def test_record_without_provenance_is_refused(tmp_path):
    path = tmp_path / "bare.json"
    path.write_text(json.dumps({"rows": {}}))
    with pytest.raises(ValueError, match=r"bare\.json has no provenance"):
        record.read(path)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of one file, which records may depend on, in a folder that may become a git checkout."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    record.RESULTS.mkdir()
    source = tmp_path / "package" / "one.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    return source


ONE = ["package/*.py"]


def test_a_record_is_stale_once_its_code_has_changed(package):
    fresh = {"provenance": {"depends_on": ONE, "depends_digest": provenance.digest(ONE)}}
    assert not record.is_stale(fresh)
    package.write_text("# a comment\nx = 1\n")
    assert not record.is_stale(fresh)
    package.write_text("x = 2\n")
    assert record.is_stale(fresh)
    package.write_text("x = 1\n")
    package.with_name("two.py").write_text("y = 1\n")
    assert record.is_stale(fresh), "a new file matches"
    package.with_name("two.py").unlink()
    assert not record.is_stale(fresh)
    package.unlink()
    assert record.is_stale(fresh), "nothing matches"


def test_a_record_that_does_not_say_what_it_depends_on_is_stale(package):
    for about in ({}, {"depends_on": ONE}, {"depends_on": ONE, "depends_digest": None}, {"depends_on": []}):
        assert record.is_stale({"provenance": about})


def test_stale_records_are_named(package):
    for name, found in (("b", "0"), ("a", None), ("fresh", provenance.digest(ONE))):
        about = {"depends_on": ONE, "depends_digest": found}
        (record.RESULTS / f"{name}.json").write_text(json.dumps({"provenance": about}))
    assert list(record.stale()) == ["a", "b"]


def test_a_record_is_loaded_by_its_name(package):
    (record.RESULTS / "one.json").write_text('{"provenance": {}, "us": 1}')
    assert record.load("one")["us"] == 1
    with pytest.raises(FileNotFoundError, match="no record 'two': records are in benchmarks/results"):
        record.load("two")


def git(folder, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_files_that_changed_since_a_records_commit(package, tmp_path):
    measured = {"provenance": {"commit": "1" * 40, "depends_on": ONE}}
    assert record.changed_files(measured) is None, "no git checkout"
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    assert record.changed_files(measured) is None, "no such commit"
    assert record.why_stale(measured) == (
        "measured at 111111111111; changed since: files unknown: git does not have the commit"
    )
    measured["provenance"]["commit"] = record.commit() + "+changes"
    assert record.changed_files(measured) == []
    measured["provenance"]["depends_digest"] = provenance.digest(ONE)
    assert record.why_stale(measured) is None
    package.write_text("x = 2\n")
    (tmp_path / "other.py").write_text("")
    git(tmp_path, "add", ".")
    assert record.changed_files(measured) == ["package/one.py"]
    assert record.why_stale(measured) == f"measured at {record.commit()[:12]}; changed since: package/one.py"
    package.rename(package.with_name("two.py"))
    git(tmp_path, "add", ".")
    assert record.changed_files(measured) == ["package/one.py", "package/two.py"]
    measured["provenance"]["depends_on"] = ["package/deep/*.py", "package/one.py", "package/two.py"]
    assert record.changed_files(measured) == ["package/one.py", "package/two.py"]
    assert record.why_stale(measured).endswith("; gone since: package/deep/*.py, package/one.py")
    del measured["provenance"]["depends_on"]
    assert record.changed_files(measured) is None
    assert record.why_stale(measured) is not None


def test_of_many_changed_files_some_are_named(package, monkeypatch):
    monkeypatch.setattr(record, "changed_files", lambda measured: [f"{number}.py" for number in range(8)])
    why = record.why_stale({"provenance": {"depends_on": ONE, "commit": "1" * 40}})
    assert why.endswith("changed since: 0.py, 1.py, 2.py, 3.py, 4.py and 3 more")


def test_commit_says_when_the_tree_differs(package, tmp_path):
    assert record.commit() is None, "no git checkout"
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    clean = record.commit()
    assert re.fullmatch(r"[0-9a-f]{40}", clean)
    package.write_text("x = 3\n")
    assert record.commit() == clean + "+changes"


def test_provenance_has_machine_versions_date_commit_and_dependencies(monkeypatch):
    gpu = SimpleNamespace(name="a GPU", major=9, minor=0, multi_processor_count=132, L2_cache_size=50)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    about = record.provenance("abc", PATTERNS)
    assert set(about) == PROVENANCE
    assert (about["gpu"], about["capability"], about["sms"], about["l2_bytes"]) == ("a GPU", "9.0", 132, 50)
    assert (about["commit"], about["depends_on"]) == ("abc", [*PATTERNS])
    assert about["depends_digest"] == provenance.digest(PATTERNS)
    assert not record.is_stale({"provenance": about})
    assert not record.is_stale({"provenance": record.provenance("abc")}), "the whole library, where nothing is said"


@pytest.mark.gpu
def test_provenance_is_complete():
    assert set(record.provenance()) == PROVENANCE
