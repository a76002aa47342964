"""`hint` in a notebook, and how a hint is shown anywhere."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from gemm_course import progress
from gemm_course.exercises.manifest import Exercise
from gemm_course.notebook import kernel
from gemm_course.notebook.current_exercise import find_exercise

_WIDTH = 96


def hint(exercise=None) -> None:
    """Show the next hint of an exercise; `course hint` counts on from there, and the other way round.

    Args:
        exercise: its number ("04a") or its function. By default the exercise of this notebook, or the one that was
            checked last, or the first that is not solved.
    """
    found = find_exercise(exercise, "hint")
    if found is not None:
        show_next_hint(found, kernel.bold, _filled, f'solution("{found.id}", give_up=True)', tell=print)


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


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
