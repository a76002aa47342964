"""`hint` in a notebook."""

from __future__ import annotations

import textwrap

from gemm_course.next_hint import show_next_hint
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


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
