"""`course check --watch`: check a notebook again each time that it is saved."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gemm_course.cli import terminal
from gemm_course.exercises.manifest import Exercise
from gemm_course.judging.results import Result, exit_code
from gemm_course.notebook import locations

POLL_S = 0.25
MISSING = 4  # looks in a row without a file, until it is called gone: a save may replace it

Check = Callable[[Exercise, Path], "Result | None"]


def watch(
    targets: Sequence[tuple[Exercise, Path]], check: Check, now: bool, pause: Callable[[float], None] = time.sleep
) -> int:
    """Check notebooks as they are saved, until Ctrl-C; then print a summary. Returns the exit code of the last checks.

    `check` prints its findings, and returns None if there is no answer. `now`: check all of them at once, too.
    """
    stamps = {path: _stamp(path) for _, path in targets}
    results: dict[str, list[Result]] = {}
    names = locations.shown(targets[0][1]) if len(targets) == 1 else "the notebooks"
    try:
        if not now:
            print(f"waiting for one of {len(targets)} notebooks to be saved; Ctrl-C ends", flush=True)
        changed = list(targets) if now else _wait(targets, stamps, pause)
        while True:
            if terminal.is_terminal(sys.stdout):
                terminal.console(sys.stdout).clear()
            for exercise, path in changed:
                if (result := check(exercise, path)) is not None:
                    results.setdefault(exercise.id, []).append(result)
            at = time.strftime("%H:%M:%S")
            footer = f"checked at {at}; watching {names}: save to check again, Ctrl-C ends"
            print(f"\n{terminal.paint(footer, 'dim')}", flush=True)
            changed = _wait(targets, stamps, pause)
    except KeyboardInterrupt:
        return _summary(results)


def _wait(targets, stamps: dict[Path, tuple | None], pause) -> list[tuple[Exercise, Path]]:
    """Wait until notebooks differ from their stamps, and have stopped changing."""
    there = {path: stamp is not None for path, stamp in stamps.items()}
    missing = dict.fromkeys(stamps, 0)  # how often in a row
    while True:
        pause(POLL_S)
        for path in stamps:
            missing[path] = 0 if path.exists() else missing[path] + 1
            if there[path] and missing[path] == MISSING:
                print(f"{locations.shown(path)} is gone: it is checked when it is there again; Ctrl-C ends", flush=True)
        changed = [(e, path) for e, path in targets if (stamp := _stamp(path)) and stamp != stamps[path]]
        if changed:
            latest = {path: _stamp(path) for _, path in changed}
            pause(POLL_S)
            if all(stamp == _stamp(path) for path, stamp in latest.items()):
                stamps.update(latest)
                return changed


def _stamp(path: Path) -> tuple | None:
    """A value that changes when a file is saved; None while it does not exist, as between two steps of saving."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _summary(results: dict[str, list[Result]]) -> int:
    print()
    if not results:
        print("nothing was checked")
        return 1
    for checked in results.values():
        last = checked[-1]
        sign = terminal.verdict(last.status)
        times = "once" if len(checked) == 1 else f"{len(checked)} times"
        print(f"{sign} {last.exercise} checked {times}, at last {last.points} of {last.max_points} points")
    return exit_code(checked[-1] for checked in results.values())
