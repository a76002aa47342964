"""An exercise as its file describes it: what is refused, and what follows from its checks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gemm_course import judging
from gemm_course.judging.exercise import Check, Exercise

DATA = {
    "id": "03", "name": "03_tail_masks", "run": "a.run", "title": "Masks",
    "lesson": "03_lesson", "function": "f", "todo": "write it",
    "hints": ["a", "b", "c"],
    "checks": [{"name": "one", "title": "it holds", "points": 2}, {"name": "two", "title": "it ends", "points": 3}],
}  # fmt: skip


def test_points_and_defaults():
    found = msgspec.convert(DATA, Exercise)
    assert (found.points, found.compiles, found.gpu, found.imports) == (5, False, False, ())
    assert (found.seconds, found.memory_mb) == (4.0, 1024)
    assert found.checks[1] == Check("two", "it ends", 3)


def test_the_check_named_compiles_asks_for_the_compiler():
    found = msgspec.convert(DATA | {"checks": [*DATA["checks"], {**DATA["checks"][0], "name": "compiles"}]}, Exercise)
    assert (found.compiles, found.points) == (True, 7)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"title": ""}, r"length >= 1 - at `\$.title`"),
        ({"lesson": ""}, r"length >= 1 - at `\$.lesson`"),
        ({"function": ""}, r"length >= 1 - at `\$.function`"),
        ({"todo": ""}, r"length >= 1 - at `\$.todo`"),
        ({"hints": ["a", "b"]}, r"length >= 3 - at `\$.hints`"),
        ({"checks": []}, r"length >= 1 - at `\$.checks`"),
        ({"checks": [{"name": "one", "title": "x", "points": 0}]}, r">= 1 - at `\$.checks\[0\].points`"),
        ({"checks": [{"name": "one", "title": "x"}]}, r"missing required field `points` - at `\$.checks\[0\]`"),
        ({"checks": [{**DATA["checks"][0], "colour": 1}]}, r"unknown field `colour` - at `\$.checks\[0\]`"),
        ({"seconds": "6"}, r"Expected `float`, got `str` - at `\$.seconds`"),
        ({"colour": "red"}, "unknown field `colour`"),
    ],
)
def test_what_is_no_exercise_is_refused(change, says):
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(DATA | change, Exercise)


def test_nobody_changes_an_exercise():
    found = msgspec.convert(DATA, Exercise)
    with pytest.raises(AttributeError, match="immutable"):
        found.title = "Another"
    with pytest.raises(AttributeError, match="immutable"):
        found.checks[0].points = 100


def test_the_judge_imports_nothing_by_name():
    """Import-linter sees no import by name, and so no judge that looks up its examiners itself."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in Path(judging.__file__).parent.glob("*.py")}
    assert len(sources) > 10
    assert [name for name, source in sources.items() if "importlib" in source or "__import__" in source] == []
