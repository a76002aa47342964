"""`hint` and `solution` for exercises in a notebook, and what to do after a pass."""

from __future__ import annotations

import os
import textwrap

from gemm_course.exercises import manifest, progress
from gemm_course.exercises.manifest import Exercise
from gemm_course.notebook_files import cells, locations, stubs

_latest: Exercise | None = None  # that was checked in this process


def hint(exercise=None) -> None:
    """Show the next hint of an exercise; `course hint` counts on from there, and the other way round.

    Args:
        exercise: its number ("04a") or its function. By default the exercise of this notebook, or the one that was
            checked last, or the first that is not solved.
    """
    found = _find(exercise, "hint")
    if found is None:
        return
    count = len(found.hints)
    number = progress.next_hint(found.id, count, tell=print)
    print(_bold(f"Exercise {found.id} · {found.title}, hint {number + 1} of {count}"))
    print(textwrap.fill(found.hints[number], 96, break_long_words=False, break_on_hyphens=False))
    if number + 1 == count:
        print(f'\nThat was the last hint. solution("{found.id}", give_up=True) shows the answer.')


def solution(exercise=None, give_up: bool = False) -> None:
    """Show the cell that solves an exercise, after a pass.

    Args:
        exercise: as in `hint`.
        give_up: show it before a pass, too; progress keeps that it was shown, and the points can still be earned.
    """
    found = _find(exercise, "solution")
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
    if not _show_markdown(f"```python\n{source}\n```"):
        print(source)


def note_checked(exercise: Exercise) -> None:
    """Remember which exercise this process works on."""
    global _latest
    _latest = exercise


def show_next_step(exercise: Exercise) -> None:
    """After a pass, show a reader how many exercises are solved, where the solution is, and a link to what comes next.

    Stored outputs and graders get nothing: it depends on the learner.
    """
    if notebook_name() is None:
        return
    every = manifest.exercises()
    left = progress.unsolved(every, progress.load(tell=print))
    solved, link = len(every) - len(left), stubs.next_step(locations.stub(exercise))
    if left and not link:
        after = next((each for each in left if each.id > exercise.id), left[0])
        link = f"Next: [Exercise {after.id}, {after.title}]({after.name}.ipynb)"
    text = f'{solved} of {len(every)} exercises solved. `solution("{exercise.id}")` shows one way to write this one.'
    _show_markdown("\n\n".join(filter(None, [text, link])))


def notebook_name() -> str | None:
    """The file name of the open notebook in which this code runs; None if there is none.

    JupyterLab and VS Code pass it to their kernels; programs that execute notebooks do not.
    """
    shell = _kernel_shell()
    if shell is None:
        return None
    path = os.environ.get("JPY_SESSION_NAME") or shell.user_ns.get("__vsc_ipynb_file__")
    return os.path.basename(path) if path else None


def _find(which, command: str) -> Exercise | None:
    """The exercise that an argument names. If there is none, prints a message and returns None."""
    name = which if isinstance(which, str) or which is None else getattr(which, "__name__", "")
    if name is None:
        found = _of_this_notebook()
    else:
        try:
            found = manifest.find(name)
        except ValueError as error:
            print(f'{error}\nName one by its number, as in {command}("03").')
            return None
    left = progress.unsolved(found, progress.load(tell=print))
    if which is None and not left and len(found) > 1:
        print(f'Every exercise is solved. Name one by its number, as in {command}("03").')
        return None
    return (left or list(found))[0]


def _of_this_notebook() -> tuple[Exercise, ...]:
    name = notebook_name()
    if name is not None:
        named = [each for each in manifest.exercises() if name.startswith(each.name)]  # .yours.ipynb is one, too
        if named:
            return tuple(named)
    return (_latest,) if _latest is not None else manifest.exercises()


def _kernel_shell():
    """IPython's shell in a notebook's kernel; None elsewhere."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    return shell if hasattr(shell, "kernel") else None


def _show_markdown(text: str) -> bool:
    """Show Markdown, if this is a notebook."""
    if _kernel_shell() is None:
        return False
    from IPython.display import Markdown, display

    display(Markdown(text))
    return True


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if _kernel_shell() is not None else text
