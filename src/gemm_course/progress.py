"""A learner's points and the hints that were given: one small file in the user's state directory.

A file that cannot be read, or written, is reported and worked around: the course never stops for it. Fields that
another version of the course keeps in it stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from course_kernels.files import write_atomically

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

VERSION = 2
LOCK_S = 5.0  # how long to wait for a lock

Tell = Callable[[str], None]


class _Entry(msgspec.Struct):
    points: int = 0
    passed: bool = False
    hints: int = 0


def path() -> Path:
    """The file of the progress, in `$XDG_STATE_HOME` or `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "grouped-gemm-course" / "progress.json"


def load(tell: Tell | None = None) -> dict[str, dict]:
    """Progress by exercise id: {"points": best so far, "passed": bool, "hints": given}, and other versions' fields.

    "gave_up" is True if the solution was shown before a pass. `tell` is called with a line of text if the file cannot
    be used (default: print to stderr).
    """
    return _read(tell or _tell)["exercises"]


def note_result(exercise: str, points: int, passed: bool, tell: Tell | None = None) -> None:
    """Keep the best result of an exercise. `tell` as in `load`."""

    def change(entry: dict) -> None:
        entry["points"], entry["passed"] = max(entry["points"], points), entry["passed"] or passed

    _update(exercise, change, tell)


def next_hint(exercise: str, count: int, tell: Tell | None = None) -> int:
    """Take the next hint of `count`. Returns its number, from 0; after all of them, the last one again."""
    number = 0

    def change(entry: dict) -> None:
        nonlocal number
        number = min(max(entry["hints"], 0), count - 1)
        entry["hints"] = min(number + 1, count)

    _update(exercise, change, tell)
    return number


def note_given_up(exercise: str, tell: Tell | None = None) -> None:
    """Keep that the solution was shown before a pass."""
    _update(exercise, lambda entry: entry.update(gave_up=True), tell)


def begin_anew() -> Path | None:
    """Set all progress aside. Returns where it is kept now; None if there was none. OSError if that cannot be done."""
    with _lock():
        number, target = 1, path()
        while (aside := target.with_suffix(f".before-{number}.json")).exists():
            number += 1
        try:
            os.rename(target, aside)
        except FileNotFoundError:
            return None
    return aside


def entry_of(kept: dict[str, dict], exercise: str) -> dict:
    """The entry of an exercise in `load`'s result; if it has none, that of an exercise not begun."""
    return kept.get(exercise) or _entry({})


def unsolved(exercises: Iterable, kept: dict[str, dict]) -> list:
    """Those of some exercises that are not passed, by `load`'s result."""
    return [each for each in exercises if not entry_of(kept, each.id)["passed"]]


def _entry(data: dict) -> dict:
    """An exercise's entry, complete, with whatever else it holds."""
    return {**data, **msgspec.structs.asdict(msgspec.convert(data, _Entry))}


def _read(tell: Tell) -> dict:
    """Everything that the file holds."""
    try:
        data = msgspec.json.decode(path().read_bytes(), type=dict)
        kept = {str(name): _entry(each) for name, each in data["exercises"].items()}
        return {"version": VERSION, **data, "exercises": kept}
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        tell("progress cannot be read: going on as if there were none")
    except (ValueError, KeyError, AttributeError, RecursionError, msgspec.DecodeError) as error:
        # The next write would overwrite a file that somebody may still repair by hand.
        aside = path().with_suffix(".broken.json")
        with contextlib.suppress(OSError):
            os.replace(path(), aside)
        tell(f"progress in {path()} is not what was written ({type(error).__name__}): kept as {aside}, beginning anew")
    return {"version": VERSION, "exercises": {}}


def _update(exercise: str, change: Callable[[dict], None], tell: Tell | None) -> None:
    """Read, change one entry and write, under the lock."""
    tell = tell or _tell
    with _lock():
        data = _read(tell)
        entry = data["exercises"].setdefault(exercise, _entry({}))
        change(entry)
        _write(data, tell)


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Keep other processes from changing the file. If it cannot be locked, or not in time, go on without."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, RuntimeError):
            target = path()
            target.parent.mkdir(parents=True, exist_ok=True)
            # Not the file itself, which each write replaces.
            file = stack.enter_context(open(target.with_suffix(".lock"), "a", encoding="utf-8"))
            stop = time.monotonic() + LOCK_S
            while fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > stop:
                        break
                    time.sleep(0.01)
        yield


def _write(data: dict, tell: Tell) -> None:
    try:
        target = path()
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, json.dumps(data, indent=1, sort_keys=True), mode=0o600)
    except (OSError, RuntimeError) as error:
        tell(f"progress cannot be written ({getattr(error, 'strerror', None) or error}): it is not kept")


def _tell(text: str) -> None:
    print(f"course: {text}", file=sys.stderr)
