"""The exercise that `hint` and `solution` mean: the one named, or the one that this notebook is about."""

from __future__ import annotations

from gemm_course import progress
from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import Exercise
from gemm_course.notebook.kernel import notebook_name

_latest: Exercise | None = None  # that was checked in this process


def note_checked(exercise: Exercise) -> None:
    """Remember which exercise this process works on."""
    global _latest
    _latest = exercise


def find_exercise(which, command: str) -> Exercise | None:
    """The exercise that an argument of `command` names. If there is none, prints a message and returns None."""
    if isinstance(which, int):
        which = str(which)
    name = which if isinstance(which, str) or which is None else getattr(which, "__name__", None)
    if which is not None and name is None:
        wants = f'{command} wants the number of an exercise, as in {command}("03"), or its function'
        print(f"{wants}; got {type(which).__name__}")
        return None
    if name is None:
        found = _of_this_notebook()
    else:
        try:
            found = manifest.find(name)
        except ValueError as error:
            print(f'{error}\nName one by its number, as in {command}("03").')
            return None
    unsolved = progress.unsolved(found, progress.load(tell=print))
    if which is None and not unsolved and len(found) > 1:
        print(f'Every exercise is solved. Name one by its number, as in {command}("03").')
        return None
    return (unsolved or list(found))[0]


def _of_this_notebook() -> tuple[Exercise, ...]:
    name = notebook_name()
    if name is not None:
        named = [each for each in manifest.exercises() if name.startswith(each.name)]  # .yours.ipynb is one, too
        if named:
            return tuple(named)
    return (_latest,) if _latest is not None else manifest.exercises()
