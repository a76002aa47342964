"""`course hint NN`: the next hint of an exercise."""

from __future__ import annotations

from gemm_course.cli import terminal
from gemm_course.cli.exercise_argument import find_next, find_one
from gemm_course.cli.exit_codes import OK
from gemm_course.cli.options import ExerciseName
from gemm_course.next_hint import show_next_hint

EXAMPLES = """\
examples:
  course hint 03     a nudge; asked again, the next hint, up to nearly the answer
  course hint        for the first exercise that is not solved
  course hint 04     for the one of lesson 04 that you are at; asks for 04a or 04b where that is not clear

exit codes: 0 done; 2 no such exercise, or several of which any may be meant
"""


def run(exercise: ExerciseName = None) -> int:
    """Give the next hint of an exercise (default: the first unsolved)."""
    if exercise:
        found, why = find_one(exercise, "hint")
        if why:
            print(terminal.fit(why))
    else:
        found = find_next()
        if found is None:
            print("every exercise is solved; `course hint NN` gives the hints of one all the same")
            return OK
    bold = lambda text: terminal.paint(text, "bold")  # noqa: E731
    show_next_hint(found, bold, terminal.wrap, f"`course solution {found.id} --give-up`")
    return OK
