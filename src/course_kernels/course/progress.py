"""What a learner has passed and which hints were given: one small file in the user's state directory.

A file that cannot be read, or written, is reported and worked around: the course never stops for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path


def path() -> Path:
    """Where progress is kept: `$XDG_STATE_HOME`, or `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "grouped-gemm-course" / "progress.json"


def load(tell=None) -> dict[str, dict]:
    """Progress by exercise: {"points": best so far, "passed": bool, "hints": given}.

    Args:
        tell: called with a line of text where the file cannot be used. Default: print to stderr.
    """
    tell = tell or _tell
    try:
        data = json.loads(path().read_text(encoding="utf-8"))
        exercises = data["exercises"]
        return {
            str(name): {
                "points": int(entry.get("points", 0)),
                "passed": bool(entry.get("passed", False)),
                "hints": int(entry.get("hints", 0)),
            }
            for name, entry in exercises.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, RuntimeError):
        tell("progress cannot be read: going on as if there were none")
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        # The next write would end what can perhaps still be repaired by hand.
        aside = path().with_suffix(".broken.json")
        with contextlib.suppress(OSError):
            os.replace(path(), aside)
        tell(f"progress in {path()} is not what was written ({type(error).__name__}): kept as {aside}, beginning anew")
        return {}


def save(progress: dict[str, dict], tell=None) -> bool:
    """Write progress, whole or not at all.

    Returns:
        Whether it could be written; where not, ``tell`` has been told.
    """
    tell = tell or _tell
    name = None
    try:
        target = path()
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"exercises": progress}, file, indent=1, sort_keys=True)
        os.replace(name, target)
        return True
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        if name is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
        tell(f"progress cannot be written ({getattr(error, 'strerror', None) or error}): it is not kept")
        return False


def note_result(exercise: str, points: int, passed: bool, tell=None) -> None:
    """Keep the best result of an exercise."""
    progress = load(tell)
    entry = progress.setdefault(exercise, {"points": 0, "passed": False, "hints": 0})
    entry["points"], entry["passed"] = max(entry["points"], points), entry["passed"] or passed
    save(progress, tell)


def next_hint(exercise: str, count: int, tell=None) -> int:
    """Number of the next of ``count`` hints, from 0; the last one again after all."""
    progress = load(tell)
    entry = progress.setdefault(exercise, {"points": 0, "passed": False, "hints": 0})
    number = min(max(entry["hints"], 0), count - 1)
    entry["hints"] = min(number + 1, count)
    save(progress, tell)
    return number


def _tell(text: str) -> None:
    print(f"course: {text}", file=sys.stderr)
