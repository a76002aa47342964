"""`course check`: check the answers in the exercises' notebooks, as their own last cells do."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from gemm_course import progress
from gemm_course.cli import terminal
from gemm_course.cli.exercise_argument import find, find_next
from gemm_course.cli.exit_codes import CANNOT, OK, USAGE, Stop
from gemm_course.cli.options import Json, integer
from gemm_course.cli.watch import watch as watch_notebooks
from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import Exercise
from gemm_course.judging.results import FAILED, TODO, UNCHECKED, Result, exit_code
from gemm_course.notebook import cells, locations

if TYPE_CHECKING:
    from gemm_course.judging.judge import Judge

EXAMPLES = """\
examples:
  course check 03            the answer in my_course/exercises/03_tail_masks.ipynb, as it was last saved
  course check               the first exercise that is not solved
  course check mine.ipynb    the answers in a notebook of any name
  course check 04            all exercises of lesson 04
  course check 03 --watch    now, and each time the notebook is saved
  course check --watch       each notebook when it is saved
  course check --all         one line for each exercise
  course check --all --json  all exercises, for a script

exit codes: 0 all answers pass; 1 an answer is wrong or missing; 2 wrong usage; 3 no exercises here, or this machine
            cannot check an answer. With --watch, after Ctrl-C: the result of the last checks.
"""

MISSING = "missing"  # no answer: no notebook, or none that can be read
_DOCTOR = "course doctor   shows what this machine lacks"


def run(
    exercise: Annotated[str | None, Argument(metavar="NN", help="number, name or notebook of an exercise")] = None,
    every: Annotated[bool, Option("--all", help="all exercises, one line for each")] = False,
    watch: Annotated[bool, Option("--watch", help="check again each time a notebook is saved")] = False,
    seed: Annotated[
        int | None, Option(metavar="N", parser=integer(0, 2**32 - 1), help="use the same inputs again")
    ] = None,
    as_json: Json = False,
) -> int:
    """Check the answers in the exercises' notebooks, as they were last saved (default: the first unsolved)."""
    named = exercise or ""
    if wrong := _misuse(named, every, watch, as_json):
        raise Stop(USAGE, wrong)
    if named:
        found = find(named)
    elif every or watch:
        found = manifest.exercises()
    elif following := find_next():
        found = (following,)
    else:
        print("every exercise is solved; `course check --all` checks all of them again")
        return OK
    if locations.folder() is None and not Path(named).is_file():
        raise Stop(CANNOT, locations.missing(found[0]))
    notebooks = [(each, locations.notebook(each, named)) for each in found]
    from gemm_course.judging.judge import Judge  # slow: wrong usage is answered before

    with Judge(manifest.examiner) as judge, terminal.Status() as status:
        checker = _Checker(judge, status, seed, watch, quiet=as_json)
        if watch:
            return watch_notebooks(notebooks, checker.check_verbose, now=bool(named))
        results = checker.check_all(notebooks) if every else [checker.check_verbose(*each) for each in notebooks]
    if as_json:
        print(json.dumps(checker.rows, indent=1))
    return exit_code(results)


def _misuse(named: str, every: bool, watch: bool, as_json: bool) -> str:
    """The problem with a combination of options, or ""."""
    if watch and (every or as_json):
        return "--watch takes one exercise or none, and neither --all nor --json"
    if named and every:
        return "name one exercise, or use --all"
    return ""


@dataclass
class _Checker:
    """Checks notebooks and prints what it finds, unless it is quiet; `rows` collects the same for a script."""

    judge: Judge
    status: terminal.Status
    seed: int | None
    watching: bool
    quiet: bool
    rows: list[dict] = field(default_factory=list)

    def check_verbose(self, exercise: Exercise, path: Path) -> Result | None:
        """Check a notebook, print all of the result and what to do next."""
        self.status.show(f"checking {exercise.id} · {exercise.title} …")
        result, problem = self._check(exercise, path)
        if not self.quiet and result is None:
            print(f"{terminal.paint(f'Exercise {exercise.id} · {exercise.title}', 'bold')}\n{problem}", flush=True)
        elif not self.quiet:
            print(f"{terminal.result(result.text())}\n\n{self._next_step(exercise, path, result)}", flush=True)
        return result

    def check_all(self, notebooks: list[tuple[Exercise, Path]]) -> list[Result | None]:
        """Check notebooks, print a line for each and a total."""
        results = []
        for number, (exercise, path) in enumerate(notebooks):
            bar = terminal.bar(number, len(notebooks))
            self.status.show(f"{bar} {number + 1} of {len(notebooks)}: {exercise.id} · {exercise.title}")
            result, problem = self._check(exercise, path)
            results.append(result)
            if not self.quiet:
                print(_line(exercise, result, problem), flush=True)
        if not self.quiet:
            checked = [result for result in results if result is not None]
            points, total = sum(each.points for each in checked), sum(exercise.points for exercise, _ in notebooks)
            print(f"\n{sum(each.passed for each in checked)} of {len(notebooks)} pass, {points} of {total} points")
            if wrong := [each.exercise for each in checked if each.status == FAILED]:
                print(f"course check {wrong[0]}   shows what is wrong and where")
            if any(each.status == UNCHECKED for each in checked):
                print(_DOCTOR)
        return results

    def _check(self, exercise: Exercise, path: Path) -> tuple[Result | None, str]:
        """The result and ""; or None and the reason, if there is no answer to check."""
        try:
            if not path.exists():
                raise ValueError(locations.missing(exercise))
            result = self.judge.check(exercise, cells.of_notebook(path, exercise.function), self.seed)
        except ValueError as error:
            nothing = Result(exercise.id, exercise.title, MISSING, message=str(error), max_points=exercise.points)
            self.rows.append(_row(nothing, path))
            return None, str(error)
        finally:
            self.status.clear()
        if result.status not in (TODO, UNCHECKED):
            progress.note_result(exercise.id, result.points, result.passed)
        self.rows.append(_row(result, path))
        return result, ""

    def _next_step(self, exercise: Exercise, path: Path, result: Result) -> str:
        kept = progress.load()
        if result.passed:
            unsolved = progress.unsolved(manifest.exercises(), kept)
            other = f"\n  course solution {exercise.id}   one way to write it, to compare with"
            if not unsolved:
                return f"all exercises are solved{other}"
            following = next((each for each in unsolved if each.id > exercise.id), unsolved[0])
            notebook = locations.notebook(following)
            place = locations.shown(notebook) if notebook.exists() else f"`course reset {following.id}` restores it"
            return f"next: {following.id} · {following.title}: {place}{other}"
        if result.status == UNCHECKED:
            return f"next: repair this machine, and check again\n  {_DOCTOR}"
        given, count = progress.entry_of(kept, exercise.id)["hints"], len(exercise.hints)
        verb = "write" if result.status == TODO else "repair"
        first = f"next: {verb} {exercise.function} in {locations.shown(path)}, save it (Ctrl-S), and check again"
        remaining = f"{count - given} of {count} hints left" if given < count else "the last hint again"
        rows = [(f"course hint {exercise.id}", remaining)]
        if not self.watching:
            rows.append((f"course check {exercise.id} --watch", "checks after each save"))
        if result.status != TODO:
            rows.append((f"course check {exercise.id} --seed {result.seed}", "the same inputs again"))
        if result.panels:
            rows.append(("the check at the notebook's end", "draws the mistake"))
        width = max(len(what) for what, _ in rows)
        return "\n".join([terminal.wrap(first), *(f"  {what:<{width}}   {why}" for what, why in rows)])


def _row(result: Result, path: Path) -> dict:
    """A result for a script. A property that was not checked has the reason as its message."""
    row = {key: value for key, value in result.as_dict().items() if key != "panels"}
    for each in row["properties"]:
        if each["status"] == "skip" and result.message:
            each["message"] = f"not checked: {result.message.splitlines()[0]}"
    return {**row, "points": result.points, "notebook": str(path)}


def _line(exercise: Exercise, result: Result | None, problem: str) -> str:
    """One line on an exercise, and one on its first mistake."""
    if result is None or result.status == TODO:
        reason = problem or "not started"
        text = f"{terminal.OPEN} {exercise.id:<5} 0 of {exercise.points}  {exercise.title}: {reason}"
        return terminal.mark(terminal.OPEN) + terminal.fit(text)[1:]
    sign = terminal.verdict(result.status)
    line = f"{sign} {exercise.id:<5}{result.points:>2} of {exercise.points}  {exercise.title}"
    if result.passed:
        return line
    reason = result.message or result.first_failure.message
    return f"{line}\n{terminal.fit(' ' * 8 + reason.splitlines()[0])}"
