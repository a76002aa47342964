"""`solution` in a notebook: the cell that solves an exercise."""

from __future__ import annotations

from gemm_course import progress
from gemm_course.notebook import cells, kernel, locations, stubs
from gemm_course.notebook.current_exercise import find_exercise


def solution(exercise=None, give_up: bool = False) -> None:
    """Show the cell that solves an exercise, after a pass.

    Args:
        exercise: as in `hint`.
        give_up: show it before a pass, too; progress keeps that it was shown, and the points can still be earned.
    """
    found = find_exercise(exercise, "solution")
    if found is None:
        return
    entry = progress.entry_of(progress.load(tell=print), found.id)
    if not (entry["passed"] or give_up):
        print(f"The solution of {found.id} is shown after a pass; so far {entry['points']} of {found.points} points.")
        print(f'hint("{found.id}") helps; solution("{found.id}", give_up=True) shows it now.')
        return
    path = locations.solution(found)
    if path is None:
        print(f'The solutions are in the course\'s repository, which is not here; hint("{found.id}") works here.')
        return
    source = "\n".join(line for line, _ in stubs.solution_lines(cells.of_notebook(path, found.function)))
    if not entry["passed"]:
        progress.note_given_up(found.id, tell=print)
    if not kernel.show_markdown(f"```python\n{source}\n```"):
        print(source)
