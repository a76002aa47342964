"""`course check`: check the answers in the exercises' notebooks, as their own last cells do."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gemm_course.cli import terminal
from gemm_course.exercises import manifest, progress
from gemm_course.exercises.manifest import Exercise
from gemm_course.judging.results import FAILED, TODO, UNCHECKED, Result, exit_code
from gemm_course.notebook_files import cells as submission
from gemm_course.notebook_files import locations as places

EXAMPLES = """\
examples:
  course check 03            the answer in exercises/03_tail_masks.ipynb, as it was last saved
  course check 04            every exercise of lesson 04
  course check 03 --watch    at once, and again each time that the notebook is saved
  course check --watch       whichever notebook is saved
  course check --all         a line for each exercise
  course check --all --json  all of them, for a script

exit codes: 0 every answer passes; 1 one does not, or is not there yet; 2 wrong usage; 3 no exercises here, or an
            answer that cannot be checked here. With --watch, after Ctrl-C: how the last checks went.
"""

MISSING = "missing"  # no answer: no notebook, or none that can be read
_DOCTOR = "course doctor   says what this machine lacks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "Check the answers in the exercises' notebooks, as they were last saved."
    parser.add_argument("exercise", metavar="NN", nargs="?", help="number, name or notebook of an exercise")
    parser.add_argument("--all", action="store_true", help="every exercise, a line for each")
    parser.add_argument("--watch", action="store_true", help="check again each time that a notebook is saved")
    parser.add_argument("--seed", type=int, help="draw the same inputs again")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check, print, and keep what was reached."""
    if wrong := _misused(arguments):
        print(f"course check: {wrong}", file=sys.stderr)
        return 2
    named = arguments.exercise or ""
    try:
        found = manifest.find(named) if named else manifest.exercises()
    except ValueError as error:
        print(f"course: {error}", file=sys.stderr)
        return 2
    if places.folder() is None and not Path(named).is_file():
        print(f"course check: {places.missing(found[0])}", file=sys.stderr)
        return 3
    notebooks = [(exercise, places.notebook(exercise, named)) for exercise in found]
    from gemm_course.judging.judge import Judge

    with Judge() as judge, terminal.Status() as status:
        checker = _Checker(judge, status, arguments)
        if arguments.watch:
            from gemm_course.cli.watch import watch

            return watch(notebooks, checker.told, now=bool(named))
        rows = checker.lines(notebooks) if arguments.all else [checker.told(*each) for each in notebooks]
    if arguments.json:
        print(json.dumps(checker.rows, indent=1))
    return exit_code(rows)


def _misused(arguments: argparse.Namespace) -> str:
    """What is wrong with a combination of options."""
    if arguments.watch and (arguments.all or arguments.json):
        return "--watch goes with one exercise or with none, not with --all or --json"
    if arguments.exercise and arguments.all:
        return "name one exercise, or say --all"
    if not (arguments.exercise or arguments.all or arguments.watch):
        left = progress.unsolved(manifest.exercises(), progress.load())
        return "name an exercise, or say --all" + (f"; the first unsolved is {left[0].id}" if left else "")
    return ""


class _Checker:
    """Checks notebooks and tells what it found."""

    def __init__(self, judge, status: terminal.Status, arguments: argparse.Namespace):
        self.judge, self.status, self.arguments = judge, status, arguments
        self.rows: list[dict] = []

    def told(self, exercise: Exercise, path: Path) -> Result | None:
        """Check a notebook, print all of it and what to do next."""
        self.status.show(f"checking {exercise.id} · {exercise.title} …")
        result, problem = self._check(exercise, path)
        if self.arguments.json:
            return result
        if result is None:
            print(f"{terminal.paint(f'Exercise {exercise.id} · {exercise.title}', 'bold')}\n{problem}", flush=True)
        else:
            print(f"{terminal.result(result.text())}\n\n{self._next(exercise, path, result)}", flush=True)
        return result

    def lines(self, notebooks: list[tuple[Exercise, Path]]) -> list[Result | None]:
        """Check notebooks, print a line for each and a total."""
        results, total = [], sum(exercise.points for exercise, _ in notebooks)
        for number, (exercise, path) in enumerate(notebooks):
            bar = terminal.bar(number, len(notebooks))
            self.status.show(f"{bar} {number + 1} of {len(notebooks)}: {exercise.id} · {exercise.title}")
            result, problem = self._check(exercise, path)
            results.append(result)
            if not self.arguments.json:
                print(_line(exercise, result, problem), flush=True)
        if not self.arguments.json:
            solved = sum(result is not None and result.passed for result in results)
            points = sum(result.points for result in results if result is not None)
            print(f"\n{solved} of {len(notebooks)} pass, {points} of {total} points", flush=True)
            wrong = [result.exercise for result in results if result is not None and result.status == FAILED]
            if wrong:
                print(f"course check {wrong[0]}   says what is wrong and where")
            if any(result is not None and result.status == UNCHECKED for result in results):
                print(_DOCTOR)
        return results

    def _check(self, exercise: Exercise, path: Path) -> tuple[Result | None, str]:
        """The result; None where there is no answer to check, and why."""
        try:
            if not path.exists():
                raise ValueError(places.missing(exercise))
            result = self.judge.check(exercise, submission.of_notebook(path, exercise.function), self.arguments.seed)
        except ValueError as error:
            self.status.clear()
            nothing = Result(exercise.id, exercise.title, MISSING, message=str(error), max_points=exercise.points)
            self.rows.append(_row(nothing, path))
            return None, str(error)
        self.status.clear()
        if result.status not in (TODO, UNCHECKED):
            progress.note_result(exercise.id, result.points, result.passed)
        self.rows.append(_row(result, path))
        return result, ""

    def _next(self, exercise: Exercise, path: Path, result: Result) -> str:
        kept = progress.load()
        if result.passed:
            left = progress.unsolved(manifest.exercises(), kept)
            if not left:
                return "all exercises are solved"
            there = places.notebook(left[0])
            where = places.shown(there) if there.exists() else f"`course reset {left[0].id}` puts its notebook here"
            return f"next: {left[0].id} · {left[0].title}: {where}"
        if result.status == UNCHECKED:
            return f"next: have this machine repaired, and check again\n  {_DOCTOR}"
        given, count = progress.entry_of(kept, exercise.id)["hints"], len(exercise.hints)
        verb = "write" if result.status == TODO else "repair"
        said = f"next: {verb} {exercise.function} in {places.shown(path)}, save it (Ctrl-S), and check again"
        left = f"{count - given} of {count} hints left" if given < count else "the last hint again"
        rows = [(f"course hint {exercise.id}", left)]
        if not self.arguments.watch:
            rows.append((f"course check {exercise.id} --watch", "checks at each save"))
        if result.status != TODO:
            rows.append((f"course check {exercise.id} --seed {result.seed}", "the same inputs again"))
        if result.panels:
            rows.append(("the check at the notebook's end", "draws what is wrong"))
        width = max(len(what) for what, _ in rows)
        return "\n".join([said, *(f"  {what:<{width}}   {why}" for what, why in rows)])


def _row(result: Result, path: Path) -> dict:
    """A result for a script. A property that was not checked says why, as one that does not hold does."""
    row = {key: value for key, value in result.as_dict().items() if key != "panels"}
    for each in row["properties"]:
        if each["status"] == "skip" and result.message:
            each["message"] = f"not checked: {result.message.splitlines()[0]}"
    return {**row, "points": result.points, "notebook": str(path)}


def _line(exercise: Exercise, result: Result | None, problem: str) -> str:
    """One line on an exercise, and one on what is wrong first."""
    if result is None or result.status == TODO:
        said = problem or "not begun"
        return f"{terminal.mark(terminal.OPEN)} {exercise.id:<5} 0 of {exercise.points}  {exercise.title}: {said}"
    sign = terminal.verdict(result.status)
    line = f"{sign} {exercise.id:<5}{result.points:>2} of {exercise.points}  {exercise.title}"
    if result.passed:
        return line
    said = result.message or next(each.message for each in result.properties if each.message)
    return f"{line}\n        {said.splitlines()[0]}"
