"""How the next hint of an exercise is shown, in a notebook and by `course hint`."""

from __future__ import annotations

from collections.abc import Callable

from gemm_course import progress
from gemm_course.exercises.manifest import Exercise


def show_next_hint(
    exercise: Exercise,
    bold: Callable[[str], str],
    wrap: Callable[[str], str],
    shows_answer: str,
    tell: progress.Tell | None = None,
) -> None:
    """Print the next hint of an exercise, and keep that it was given.

    Args:
        exercise: whose hint.
        bold: marks the title.
        wrap: breaks lines.
        shows_answer: the call or command that shows the answer; printed after the last hint.
        tell: see `progress.load`.
    """
    count = len(exercise.hints)
    number = progress.next_hint(exercise.id, count, tell)
    print(bold(f"Exercise {exercise.id} · {exercise.title}, hint {number + 1} of {count}"))
    print(wrap(exercise.hints[number]))
    if number + 1 == count:
        print(f"\nThat was the last hint. {shows_answer} shows the answer.")
