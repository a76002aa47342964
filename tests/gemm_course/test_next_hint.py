"""The next hint of an exercise: which one, and what follows the last."""

from __future__ import annotations

from gemm_course import progress
from gemm_course.exercises import manifest
from gemm_course.next_hint import show_next_hint

(MASKS,) = manifest.find("03")


def test_each_hint_comes_once_and_the_last_one_again(capsys):
    shown = []
    for _ in range(len(MASKS.hints) + 1):
        show_next_hint(MASKS, str.upper, str.strip, "`ask`")
        shown.append(capsys.readouterr().out)
    count = len(MASKS.hints)
    for number, printed in enumerate(shown[:-1], 1):
        title, text = printed.split("\n", 1)
        assert title == f"EXERCISE 03 · {MASKS.title.upper()}, HINT {number} OF {count}"
        assert text.startswith(MASKS.hints[number - 1].strip())
        assert ("`ask` shows the answer" in text) == (number == count)
    assert shown[-1] == shown[-2]
    assert progress.load()["03"]["hints"] == count
