"""What was checked is not checked again, until the answer, the seed or what decides about a result changes."""

from __future__ import annotations

import importlib.metadata

import pytest

from gemm_course.grading import result_cache
from hand_ins import cache_in, class_of, graded, outcome


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


def test_the_engine_is_everything_that_decides(monkeypatch, tmp_path):
    import course_kernels

    def digest():
        result_cache.checker_digest.cache_clear()
        return result_cache.checker_digest()

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
        result_cache.checker_digest.cache_clear()
