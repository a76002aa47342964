"""Finds the exercise that a name on the command line means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gemm_course import progress
from gemm_course.cli.exit_codes import USAGE, Stop
from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import Exercise
from gemm_course.notebook import cells, locations, stubs


def find(name: str) -> tuple[Exercise, ...]:
    """The exercises that a name means, see `manifest.find`; ends the subcommand if there is none.

    The path of a notebook with another name means the exercises whose functions its cells define.
    """
    try:
        return manifest.find(name)
    except ValueError as error:
        path = Path(name)
        if path.suffix == ".ipynb" and not path.is_file():
            raise Stop(USAGE, f"there is no file {name}, and no exercise has a notebook of this name") from None
        if path.suffix != ".ipynb":
            raise Stop(USAGE, error) from None
    try:
        code = cells.code_cells(path.read_bytes(), path.name)
    except (OSError, ValueError) as error:
        raise Stop(USAGE, error) from None
    found = [e for e in manifest.exercises() if any(cells.defines(cell.source, e.function) for cell in code)]
    if not found:
        raise Stop(USAGE, f"{path.name} holds no answer: no cell of it defines the function of an exercise")
    return tuple(found)


def find_one(name: str | None, command: str) -> tuple[Exercise, str]:
    """The exercise that a name means, and the reason in a line; "" if the name is unique.

    If the name means several, it is the one that is begun and not passed. If that is not clear, the subcommand ends
    with a list.
    """
    if not name:
        raise Stop(USAGE, f"name an exercise, as in `course {command} 03`; there are\n{_list(manifest.exercises())}")
    found = find(name)
    if len(found) == 1:
        return found[0], ""
    kept = progress.load()
    unsolved = progress.unsolved(found, kept)
    begun = [each for each in unsolved if _is_begun(each, kept)]
    several = f"{found[0].id[:2]} has {_and(found)}"
    if len(unsolved) == 1:
        return unsolved[0], f"{unsolved[0].name} ({several}; {unsolved[0].id} is not passed yet)"
    if len(begun) == 1:
        return begun[0], f"{begun[0].name} ({several}; only {begun[0].id} is begun and not passed yet)"
    those = "all are passed" if not unsolved else f"{_and(unsolved)} are not passed yet"
    raise Stop(USAGE, f"{several}, and {those}: name one, as in `course {command} {found[0].id}`\n{_list(found)}")


def find_next() -> Exercise | None:
    """The first exercise that is not solved."""
    return next(iter(progress.unsolved(manifest.exercises(), progress.load())), None)


def _is_begun(exercise: Exercise, kept: dict[str, dict]) -> bool:
    """Return whether a learner has taken a hint, earned points, or written something into the hole."""
    entry = progress.entry_of(kept, exercise.id)
    if entry["hints"] or entry["points"]:
        return True
    try:
        return stubs.hole(exercise) not in cells.of_notebook(locations.notebook(exercise), exercise.function)
    except ValueError:  # there is no notebook, or one that cannot be read
        return False


def _list(exercises: Sequence[Exercise]) -> str:
    return "\n".join(f"  {each.id:<5}{each.title}" for each in exercises)


def _and(exercises: Sequence[Exercise]) -> str:
    ids = [each.id for each in exercises]
    return " and ".join(filter(None, [", ".join(ids[:-1]), ids[-1]]))
