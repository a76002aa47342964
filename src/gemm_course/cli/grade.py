"""`course grade DIR`: grade a folder of submissions."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

from gemm_course.cli import terminal
from gemm_course.exercises import manifest
from gemm_course.grading import grades as grading
from gemm_course.grading import gradescope
from gemm_course.grading import submissions as handed_in
from gemm_course.grading.result_cache import ResultCache
from gemm_course.judging.results import UNCHECKED

EXAMPLES = """\
examples:
  course grade hand-ins                                  everybody, every exercise, into grades.csv
  course grade hand-ins --only 03                        a class that was asked for exercise 03 alone
  course grade hand-ins --only 03 --only 04 --out w2.csv --jobs 4
  course grade hand-ins --gradescope scores              and scores/STUDENT/results.json

What may lie in DIR, side by side: a folder for each student, holding notebooks, an exercises/ folder or the whole
repository; zip files of the same, alice.zip; notebooks, alice.ipynb or alice_02_tail_masks.ipynb. Copies, as in
"03_tail_masks (1).ipynb", count as versions: each is checked, the best counts, and the message says which.
Only the cell with the answer runs, in a process of its own; nothing is unpacked onto the disk, no link is followed.

Without --only every exercise counts, 0 points where a student handed in nothing, and the summary says which exercises
nobody answered. Name with --only what was asked for, the same for everybody whose grades are compared.

Interrupted, the same command goes on where it stopped: what was checked is kept in grades.csv.journal and checked
again only when the answer, the seed or the course's own code has changed. Everybody gets the same inputs. They are
drawn for the first run, so that nobody can know them, and kept for the next; --seed N draws those of N.

exit codes: 0 graded; 1 graded, but something that was handed in cannot be (status "refused"); 2 wrong usage, or
            nothing to grade; 3 the results cannot be written, or answers not checked (status "unchecked"), here;
            130 interrupted
"""
OK, REFUSED, USAGE, CANNOT, INTERRUPTED = 0, 1, 2, 3, 130


def _number(text: str) -> int:
    if not text.isdigit() or not 0 <= int(text) < 1 << 32:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {(1 << 32) - 1}, got {text!r}")
    return int(text)


def _jobs(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 256, got {text!r}")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "Grade a folder of submissions: one row for each student and exercise, and a total."
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, help="holds what was handed in")
    parser.add_argument("--out", metavar="CSV", type=Path, default=Path("grades.csv"), help="default: grades.csv")
    parser.add_argument("--jobs", metavar="N", type=_jobs, default=2, help="answers checked at a time (default: 2)")
    parser.add_argument("--gradescope", metavar="DIR", type=Path, help="also write DIR/STUDENT/results.json")
    parser.add_argument("--only", metavar="NN", action="append", help="grade this exercise alone; may be repeated")
    parser.add_argument("--seed", metavar="N", type=_number, help="inputs to draw (default: those of the last run)")


def run(arguments: argparse.Namespace) -> int:
    """Grade, write, summarise."""
    folder, out = arguments.folder, arguments.out
    if folder is None:
        return _stop(USAGE, "name the folder that holds what was handed in")
    try:
        wanted = {each for name in arguments.only or () for each in manifest.find(name)}
        exercises = [each for each in manifest.exercises() if not wanted or each in wanted]
        kept_in = out.with_name(f"{out.name}.journal")
        ours = [path for path in (out, kept_in, arguments.gradescope) if path is not None]
        earlier = set(map(Path.resolve, gradescope.written_in(folder))).difference(map(Path.resolve, ours))
        # Of all exercises, whichever are graded: a file's name less its exercise's is the student's.
        found, strangers = handed_in.discover(folder, manifest.exercises(), ignore=[*ours, *earlier])
    except OSError as error:
        return _stop(USAGE, f"{folder} cannot be read as a folder of submissions: {error.strerror}")
    except ValueError as error:
        return _stop(USAGE, str(error))
    if strangers or earlier:  # what another run wrote is told, too: it might be a student's after all
        names = sorted([*strangers, *(path.name for path in earlier)])
        print(f"course grade: not submissions, passed over: {_few(names)}", file=sys.stderr)
    if not found:
        return _stop(USAGE, f"{folder} holds no submission: no folder, no notebook, no zip file")
    if out.exists() and not out.is_file():
        return _stop(CANNOT, f"{out} cannot be written: it is there, and no file")
    try:
        if arguments.gradescope is not None:
            arguments.gradescope.mkdir(parents=True, exist_ok=True)
        kept = ResultCache(kept_in)
    except BlockingIOError:
        return _stop(CANNOT, f"{kept_in} is in use: another `course grade` writes the same file")
    except OSError as error:
        return _stop(CANNOT, f"{error.filename} cannot be written: {error.strerror}")
    with kept:
        return _grade(arguments, exercises, found, kept)


def _grade(arguments: argparse.Namespace, exercises: list, found: list, kept: ResultCache) -> int:
    bar, target = _Bar(), arguments.out
    try:
        seed = arguments.seed
        if seed is None:
            seed = kept.seed if kept.seed is not None else int.from_bytes(os.urandom(4), "little")
        kept.use_seed(seed)
        grades = grading.grade(found, exercises, seed, kept, arguments.jobs, bar.show)
        bar.clear()
        grading.write_csv(arguments.out, grading.rows(grades, seed))
        if arguments.gradescope is not None:
            target = arguments.gradescope
            gradescope.write(target, grades, seed)
    except KeyboardInterrupt:
        bar.clear()
        print(
            f"course grade: interrupted. What was checked is kept in {kept.path}: the same command goes on from there.",
            file=sys.stderr,
        )
        return INTERRUPTED
    except OSError as error:
        bar.clear()
        return _stop(CANNOT, f"{error.filename or target} cannot be written: {error.strerror}")
    except RuntimeError as error:
        bar.clear()
        return _stop(CANNOT, str(error))
    return _summary(arguments, found, exercises, grades, seed)


def _summary(arguments: argparse.Namespace, found: list, exercises: list, grades: list, seed: int) -> int:
    counts = Counter(each.status for each in grades).most_common()
    print(f"{_many(len(found), 'student')}, {_many(len(exercises), 'exercise')}, seed {seed}: {arguments.out}")
    print(", ".join(f"{number} {status}" for status, number in counts))
    refused = [each for each in grades if each.status == grading.REFUSED]
    said = dict.fromkeys((each.student, each.message) for each in refused)
    for student, message in list(said)[:20]:
        print(f"refused: {grading.printable(student)}: {message}")
    if len(said) > 20:
        print(f"refused: {len(said) - 20} more, see {arguments.out}")
    if unsolved := _nobody(arguments, exercises, grading.unanswered(found, grades)):
        print(unsolved)
    unchecked = [each for each in grades if each.status == UNCHECKED]
    for line in _again([*unchecked, *(each for each in grades if each.off_gpu)]):
        print(line)
    if unchecked:
        return _stop(CANNOT, f"not checked, as that cannot be done here: {_many(len(unchecked), 'answer')}")
    return REFUSED if refused else OK


def _again(grades: list) -> list[str]:
    """What this machine kept from being checked, or from running on its GPU, and how to have that done."""
    if not grades:
        return []
    said = Counter(each.message for each in grades).most_common()
    lines = [f"{_many(number, 'answer')}: {message}" for message, number in said[:5]]
    lines += [f"{len(said) - 5} more messages, see the table"] if len(said) > 5 else []
    return [*lines, "They are checked again each time: repair that (`course doctor` says more), and run this again."]


def _nobody(arguments: argparse.Namespace, exercises: list, missing: list) -> str:
    """That nobody answered some exercises, what that costs, and what to say where nobody was asked for them.

    They are counted: were they not, one late submission would change everybody's total.
    """
    if not missing:
        return ""
    said = f"nobody handed in an answer to {', '.join(each.name for each in missing)}: "
    said += f"0 of {sum(each.points for each in missing)} points for everybody"
    asked = [f"--only {each.id}" for each in exercises if each not in missing]
    if arguments.only or not asked:
        return said
    return f"{said}.\nIf they were not asked for it, grade again with {' '.join(asked)}: nothing is checked again."


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _few(names: list[str]) -> str:
    shown = [grading.printable(name) for name in names[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _stop(code: int, text: str) -> int:
    print(f"course grade: {grading.printable(text)}", file=sys.stderr)
    return code


class _Bar:
    """How far it is, on a terminal."""

    def __init__(self):
        self._status = terminal.Status()
        self._started: float | None = None
        self._first = 0
        self.clear = self._status.clear

    def show(self, done: int, total: int, whose: str) -> None:
        """Draw it: checks done, of all, and whose was last."""
        now = time.monotonic()
        if self._started is None:
            self._started, self._first = now, done
        left = ""
        if done - self._first >= 5 and done < total:
            seconds = (now - self._started) * (total - done) / (done - self._first)
            left = f", about {seconds / 60:.0f} min left" if seconds > 90 else f", about {seconds:.0f} s left"
        whose = f"  ({grading.printable(whose)})" if whose else ""
        self._status.show(f"{terminal.bar(done, total)} {done} of {total} answers checked{left}{whose}")
