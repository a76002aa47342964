"""Which exercise is meant, for subcommands that take one: `hint`, `solution`, `reset`."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_course.exercises import manifest, progress
from gemm_course.exercises.manifest import Exercise
from gemm_course.notebook_files import cells as submission
from gemm_course.notebook_files import locations as places
from gemm_course.notebook_files import stubs as generate


def one(name: str | None, command: str) -> tuple[Exercise, str]:
    """The exercise that a name means. Of several, the one that is being worked on, if that is clear.

    Args:
        name: as the learner typed it, see `manifest.find`; None or "" where they typed none.
        command: the subcommand that asks, for messages.

    Returns:
        The exercise, and why it is this one, in a line; "" where the name says it.

    Raises:
        ValueError: there is none of that name, or several of which any may be meant; the message lists them.
    """
    if not name:
        raise ValueError(f"name an exercise, as in `course {command} 03`; there are\n{_list(manifest.exercises())}")
    found = manifest.find(name)
    if len(found) == 1:
        return found[0], ""
    kept = progress.load()
    left = progress.unsolved(found, kept)
    begun = [each for each in left if _begun(each, kept)]
    several = f"{found[0].id[:2]} has {_and([each.id for each in found])}"
    if len(left) == 1:
        return left[0], f"{left[0].name} ({several}; {left[0].id} is not passed yet)"
    if len(begun) == 1:
        return begun[0], f"{begun[0].name} ({several}; only {begun[0].id} is begun and not passed yet)"
    those = "all are passed" if not left else f"{_and([each.id for each in left])} are not passed yet"
    raise ValueError(f"{several}, and {those}: name one, as in `course {command} {found[0].id}`\n{_list(found)}")


def _begun(exercise: Exercise, kept: dict[str, dict]) -> bool:
    """Whether a learner has taken a hint, earned points, or written something into the hole."""
    entry = progress.entry_of(kept, exercise.id)
    if entry["hints"] or entry["points"]:
        return True
    try:
        return generate.hole(exercise) not in submission.of_notebook(places.notebook(exercise), exercise.function)
    except ValueError:  # there is none, or nothing that can be read
        return False


def _list(exercises: Sequence[Exercise]) -> str:
    return "\n".join(f"  {each.id:<5}{each.title}" for each in exercises)


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
