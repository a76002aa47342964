"""What was checked is not checked again, until the answer, the seed or what decides about a result changes."""

from __future__ import annotations

import ast
import hmac
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from course_kernels import provenance
from gemm_course.exercises import manifest
from gemm_course.grading import result_cache
from hand_ins import cache_in, class_of, graded, outcome
from places import ROOT

SRC = ROOT / "src"


def test_an_interrupted_run_goes_on_and_only_what_changed_is_checked_again(tmp_path, pretend, monkeypatch):
    pretend.answers["b"] = [KeyboardInterrupt(), outcome(3), outcome(3)]
    with cache_in(tmp_path) as cache, pytest.raises(KeyboardInterrupt):
        graded(cache, class_of(ann="a", bob="b", cas="c"))
    with cache_in(tmp_path) as cache:
        assert [g.points for g in graded(cache, class_of(ann="a", bob="b", cas="c"))] == [10, 3, 10]
    assert [source for source, _ in pretend] == ["a", "b", "b", "c"]
    del pretend[:]
    with cache_in(tmp_path) as cache:
        graded(cache, class_of(ann="a2", bob="b", cas="c"))
        assert [source for source, _ in pretend] == ["a2"]
        graded(cache, class_of(ann="a2", bob="b"), seed=2)
        assert [source for source, _ in pretend] == ["a2", "a2", "b"]
        monkeypatch.setattr(result_cache, "checker_digest", lambda: "another")
        graded(cache, class_of(ann="a2"))
    assert [source for source, _ in pretend] == ["a2", "a2", "b", "a2"]


def test_a_journal_cut_short_loses_one_line(tmp_path, pretend):
    with cache_in(tmp_path) as cache:
        cache.use_seed(5)
        graded(cache, class_of(ann="a", bob="b"))
    path = cache.path
    path.write_bytes(b"\xff{\n[]\n" + path.read_bytes()[:-20])
    with cache_in(tmp_path) as cache:
        assert cache.seed == 5
        graded(cache, class_of(ann="a", bob="b", cas="c"))
    with cache_in(tmp_path) as cache:
        graded(cache, class_of(ann="a", bob="b", cas="c"))
    assert [source for source, _ in pretend] == ["a", "b", "b", "c"]


@pytest.mark.parametrize("message", ["µ – ✓", "half of a pair: \ud800", "two\nlines\x00"])
def test_a_message_of_any_letters_is_kept(tmp_path, pretend, message):
    pretend.answers["a"] = outcome(0, message)
    with cache_in(tmp_path) as cache:
        first = graded(cache, class_of(ann="a"))
    with cache_in(tmp_path) as cache:
        assert graded(cache, class_of(ann="a")) == first
    assert len(pretend) == 1


def test_a_journal_that_we_did_not_write_is_not_believed(tmp_path, pretend):
    """One that was handed in, say: its results have right keys, and its seed is somebody's own."""
    key = result_cache.key("01_offsets", "a", 12)
    full = {**outcome(10), "printed": "", "panels": [], "max_points": 10}
    lines = [json.dumps(line) for line in ({"seed": 12}, {"key": key, "result": full})]
    codes = ["", f"{'0' * 64} ", f"{hmac.digest(b'another key', lines[1].encode(), 'sha256').hex()} "]
    written = "".join(f"{code}{line}\n" for code in codes for line in lines)
    (tmp_path / "grades.csv.journal").write_text(written)
    pretend.answers["a"] = outcome(3)
    with cache_in(tmp_path) as cache:
        assert cache.seed is None
        (grade,) = graded(cache, class_of(ann="a"), seed=12)
    assert (grade.points, len(pretend)) == (3, 1)
    assert (tmp_path / "grades.csv.journal").read_text().startswith(written), "nothing of it is lost"
    key = Path(os.environ["XDG_STATE_HOME"], "grouped-gemm-course", "grading.key")
    assert (len(key.read_bytes()), key.stat().st_mode & 0o777) == (32, 0o600)


def test_no_pipe_and_no_link_is_taken_for_a_journal(tmp_path):
    path = tmp_path / "grades.csv.journal"
    for make in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "elsewhere")):
        make(path)
        with pytest.raises(OSError, match=r"seek|symbolic link|not seekable"):
            cache_in(tmp_path)
        path.unlink()


# What decides about a result


def digest():
    result_cache.checker_digest.cache_clear()
    try:
        return result_cache.checker_digest()
    finally:
        result_cache.checker_digest.cache_clear()


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree with all our files, next to nothing in each, of which digests are taken."""
    for path in SRC.rglob("*.*"):
        if path.suffix in (".py", ".toml", ".json"):
            (tmp_path / path.relative_to(SRC)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path.relative_to(SRC)).write_text("x = 1\n")
    copy = shutil.copy(provenance.__file__, tmp_path / "course_kernels" / "provenance.py")
    spec = importlib.util.spec_from_file_location("provenance_of_the_tree", copy)
    monkeypatch.setattr(result_cache, "provenance", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(result_cache.provenance)
    return tmp_path


PARTS = ("exercise.toml", "examine.py", "run.py")


def test_what_decides_about_a_result_changes_the_key_and_nothing_else_does(tree):
    before = digest()
    for path in (
        "gemm_course/figures/f05_schedules.py", "gemm_course/cli/app.py", "gemm_course/cli/grade.py",
        "gemm_course/grading/grades.py", "gemm_course/grading/gradescope.py", "gemm_course/progress.py",
        "course_kernels/bench/timing.py", "course_kernels/packed/api.py",
        "course_kernels/engine/tuning/constants/a.json",
    ):  # fmt: skip
        (tree / path).write_text("x = 2\n")
    assert digest() == before
    judge = tree / "gemm_course/judging/judge.py"
    judge.write_text('"""It judges."""\n\nimport os\n\nx = 1  # at first\n')
    assert digest() == before, "comments, docstrings and imports do not count"
    digests = [before]
    names = [each.name for each in manifest.exercises()]
    for path in (
        judge, *(f"gemm_course/exercises/e{name}/{part}" for name in names for part in PARTS),
        "gemm_course/exercises/manifest.py",
        "gemm_course/runner/worker.py", "gemm_course/isolation/static_check.py", "course_kernels/testing/data.py",
        "course_kernels/kernels/round_robin.py", "course_kernels/lists/launch.py", "course_kernels/runtime.py",
    ):  # fmt: skip
        (tree / path).write_text("x = 2\n")
        digests.append(digest())
    (tree / "gemm_course/exercises" / f"e{names[0]}/exercise.toml").write_text(
        "x = 2  # of a TOML file all bytes count\n"
    )
    digests.append(digest())
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("package", ["torch", "triton", "numpy"])
def test_another_version_changes_the_key(tree, monkeypatch, package):
    found = [digest()]
    for version in ("2.3.5", "2.4.0", None):

        def installed(name, version=version):
            if name == package and version is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return version if name == package else "1.0"

        monkeypatch.setattr(importlib.metadata, "version", installed)
        if version is None and package != "numpy":
            with pytest.raises(RuntimeError, match=f"answers cannot be checked here: {package} is not installed"):
                digest()
        else:
            found.append(digest())
    assert len(set(found)) == len(found)


def test_another_python_changes_the_key(tree, monkeypatch):
    before = digest()
    monkeypatch.setattr(result_cache.sys, "version_info", (3, 99, 0))
    assert digest() != before


# The processes that check an answer begin with these, and import the exercise by its name.
BEGIN = ("gemm_course.exercises.judge_service", "gemm_course.runner.fork_server", "gemm_course.runner.worker")


def file_of(module):
    path = SRC.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imports_of(module, exported=None):
    """Our modules that a module imports anywhere, by a statement or by name; of a package those of one export."""
    for node in ast.walk(ast.parse(file_of(module).read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module, alias.name) for alias in node.names if exported in (None, alias.asname, alias.name)]
        elif isinstance(node, ast.Constant) and re.fullmatch(r"(course_kernels|gemm_course)(\.\w+)+", str(node.value)):
            names = [(node.value, None)]
        for source, name in names:
            if not file_of(source):
                continue
            if name is not None and file_of(f"{source}.{name}"):
                yield f"{source}.{name}"
            elif name is not None and file_of(source).name == "__init__.py":
                yield source, name
            else:
                yield source


def test_every_module_that_a_check_imports_is_declared():
    todo = [*BEGIN, *(manifest.examiner(each).__name__ for each in manifest.exercises())]
    todo += [each.run for each in manifest.exercises()]
    seen = set(todo)
    while todo:
        each = todo.pop()
        new = set(imports_of(*((each,) if isinstance(each, str) else each))) - seen
        seen |= new
        todo += new
    modules = {each if isinstance(each, str) else each[0] for each in seen}
    declared = [set(SRC.glob(pattern)) for pattern in result_cache.DEPENDS_ON]
    assert all(declared), "each pattern is of some file"
    assert {module for module in modules if file_of(module) not in set().union(*declared)} == set()
    assert {
        "gemm_course.judging.judge", "gemm_course.isolation.landlock", "gemm_course.runner.probes",
        "course_kernels.testing.data", "course_kernels.kernels.round_robin",
    } <= modules, "imports are followed"  # fmt: skip
