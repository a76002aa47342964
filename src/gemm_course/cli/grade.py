"""`course grade DIR`: grade a folder of submissions."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gemm_course.cli import terminal
from gemm_course.cli.exercise_argument import find
from gemm_course.cli.exit_codes import CANNOT, FAILED, INTERRUPTED, OK, USAGE, Stop
from gemm_course.cli.options import File, Names, check_folders, integer
from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import Exercise
from gemm_course.grading import class_folder, feedback, grades, gradescope, reader, roster
from gemm_course.grading.class_folder import Submission
from gemm_course.grading.grades import Grade, Penalty
from gemm_course.grading.result_cache import ResultCache
from gemm_course.judging.results import UNCHECKED

EXAMPLES = """\
examples:
  course grade hand-ins                                  all students, all exercises, into grades.csv
  course grade hand-ins --only 03                        only exercise 03
  course grade hand-ins --only 03 --only 04 --out w2.csv --jobs 4
  course grade hand-ins --gradescope scores              also writes scores/STUDENT/results.json
  course grade hand-ins --feedback back                  also writes back/STUDENT/feedback.txt
  course grade hand-ins --roster class.csv --late-penalty 10
  course grade hand-ins --identical same.csv             also lists answers that several students share

DIR may contain, side by side:
  a folder for each student, with notebooks, an exercises/ folder or the whole repository;
  zip files of such a folder: alice.zip;
  notebooks: alice.ipynb or alice_03_tail_masks.ipynb.
Each of them is one student. Answers to one exercise in folders side by side are several
hand-ins: such an entry is refused, because DIR may be one level too high. If they are
versions of one student's, add --one-student, as the message says. If all entries are
refused for it, nothing is graded or written.
A second file for an exercise, such as "03_tail_masks (1).ipynb", is a version. Each version
is checked, the best one counts, and the message names it. Only the answer's cell runs, in
a process of its own. Nothing is unpacked to disk; links are not followed.

Without --only all exercises count, and an exercise that was not handed in has 0 points. The summary names exercises
that nobody answered. Use the same --only for all students whose grades you compare.

A roster is a CSV file with a column "student", the names as in DIR, and perhaps "days_late". Everybody in it gets
rows, also without a hand-in. --late-penalty P takes P percent of the total off for each day.

A student's answers are checked for 300 s in all; what is left then has status "refused". An answer has status
"flagged", and 0 points, if it asks for what only an attack on the judge needs: look at it yourself.

If a run is interrupted, start the same command again: it continues. Results are kept in grades.csv.journal. An answer
is checked again only if the answer, the seed or the course's code has changed. All students get the same inputs. They
are drawn at random in the first run and kept for later runs; --seed N chooses them.

exit codes: 0 graded; 1 graded, but some files could not be (status "refused"); 2 wrong usage, nothing to grade, or DIR
            seems to be one level too high;
            3 results cannot be written, or answers cannot be checked on this machine (status "unchecked");
            130 interrupted
"""


def run(
    folder: Annotated[File, Argument(metavar="DIR", help="folder with the submissions")] = None,
    out: Annotated[Path, Option(metavar="CSV", help="the table of grades")] = Path("grades.csv"),
    jobs: Annotated[int, Option(metavar="N", parser=integer(1, 256), help="answers checked at a time")] = 2,
    gradescope_in: Annotated[
        File, Option("--gradescope", metavar="DIR", help="also write DIR/STUDENT/results.json")
    ] = None,
    feedback_in: Annotated[
        File, Option("--feedback", metavar="DIR", help="also write DIR/STUDENT/feedback.txt, all that the checks say")
    ] = None,
    roster_csv: Annotated[
        File, Option("--roster", metavar="CSV", help="the students, and days_late of each; absentees get rows")
    ] = None,
    late_penalty: Annotated[
        int, Option(metavar="PERCENT", parser=integer(0, 100), help="taken off the total for each day in the roster")
    ] = 0,
    identical_csv: Annotated[
        File, Option("--identical", metavar="CSV", help="also list answers that several students handed in")
    ] = None,
    only: Annotated[Names, Option(metavar="NN", help="grade only this exercise; may be repeated")] = None,
    seed: Annotated[
        int | None,
        Option(metavar="N", parser=integer(0, 2**32 - 1), help="seed of the inputs (default: that of the last run)"),
    ] = None,
    one_student: Annotated[
        Names, Option(metavar="NAME", help="several hand-ins in this entry are one student's; may be repeated")
    ] = None,
) -> int:
    """Grade a folder of submissions: one row for each student and exercise, and a total."""
    if folder is None:
        raise _stop(USAGE, "name the folder with the submissions")
    for option, path in {"--gradescope": gradescope_in, "--feedback": feedback_in}.items():
        if path is not None and path.resolve() == folder.resolve():
            text = f"{option} wants another folder than that of the submissions"
            raise Stop(
                USAGE, f"{text}: what students handed in, such as a link, would be in the place of their results"
            )
    outputs = {"out": out, "gradescope": gradescope_in, "feedback": feedback_in, "identical": identical_csv}
    check_folders(**outputs)
    try:
        listed = {} if roster_csv is None else roster.read(roster_csv)
    except (OSError, ValueError) as error:
        why = f"{roster_csv} cannot be read: {error.strerror}" if isinstance(error, OSError) else error
        raise _stop(USAGE, f"--roster: {why}") from None
    if late_penalty and roster_csv is None:
        raise _stop(USAGE, "--late-penalty needs --roster, whose column days_late says how late each student is")
    penalty = Penalty(late_penalty, listed)
    try:
        wanted = {each for name in only or () for each in find(name)}
        exercises = [each for each in manifest.exercises() if not wanted or each in wanted]
        journal_path = out.with_name(f"{out.name}.journal")
        ours = [path for path in (*outputs.values(), journal_path, roster_csv) if path is not None]
        earlier = set(map(Path.resolve, gradescope.written_in(folder))).difference(map(Path.resolve, ours))
        # Match against every exercise, not only the graded ones: the rest of the file name is the student.
        entries = class_folder.discover(folder, manifest.exercises(), ignore=[*ours, *earlier])
    except OSError as error:
        raise _stop(USAGE, f"{folder} cannot be read as a folder of submissions: {error.strerror}") from None
    except ValueError as error:
        raise _stop(USAGE, str(error)) from None
    for line in _warnings(entries, [path.name for path in earlier], listed):
        print(grades.printable(f"course grade: {line}"), file=sys.stderr)
    if not entries.students:
        raise _stop(USAGE, f"{folder} has no submissions: no folder, no notebook, no zip file")
    if unknown := sorted({*(one_student or ())} - entries.students.keys()):
        raise _stop(USAGE, f"--one-student must name somebody with work in {folder}, got {unknown[0]!r}")
    if out.exists() and not out.is_file():
        raise _stop(CANNOT, f"{out} cannot be written: it exists, and it is not a file")
    target = out
    try:
        found = reader.read_all(entries.students, jobs, one_student or ())
        if all(each.one_level_too_high for each in found):
            raise Stop(USAGE, _one_level_too_high(folder, found, entries.students))
        found = roster.with_absentees(found, listed)
        for path in filter(None, (gradescope_in, feedback_in)):
            path.mkdir(exist_ok=True)
        with ResultCache(journal_path) as journal:
            if seed is None:
                seed = int.from_bytes(os.urandom(4), "little") if journal.seed is None else journal.seed
            journal.use_seed(seed)
            with _progress() as tell:
                graded = grades.grade(found, exercises, seed, journal, jobs, tell)
            grades.write_csv(out, grades.rows(graded, seed, penalty))
            if gradescope_in is not None:
                target = gradescope_in
                gradescope.write(target, graded, seed, penalty)
            if feedback_in is not None:
                target = feedback_in
                feedback.write(target, graded, penalty)
            if identical_csv is not None:
                target = identical_csv
                grades.write_csv(target, feedback.identical(found, exercises), feedback.IDENTICAL)
    except KeyboardInterrupt:
        text = f"interrupted. Results so far are kept in {journal_path}. Run the same command again to continue."
        raise Stop(INTERRUPTED, text) from None
    except BlockingIOError:
        raise _stop(CANNOT, f"{journal_path} is in use by another `course grade`") from None
    except OSError as error:
        raise _stop(CANNOT, f"{error.filename or target} cannot be written: {error.strerror}") from None
    except RuntimeError as error:
        raise _stop(CANNOT, str(error)) from None
    print(f"{_many(len(found), 'student')}, {_many(len(exercises), 'exercise')}, seed {seed}: {out}")
    unread = any(each.notes for each in found)
    missing = _unanswered(bool(only), exercises, grades.unanswered(found, graded), unread)
    return _summary(out, graded, missing)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar, on a terminal; yields the function to call with the checks done, all checks, and a student."""
    with terminal.progress("answers checked") as bar:

        def tell(done: int, total: int, whose: str) -> None:
            whose = f"({grades.printable(whose)})" if whose else ""
            if not bar.task_ids:  # an interrupted run goes on: its earlier checks say nothing about the speed
                bar.add_task(whose, total=total, completed=done)
            bar.update(bar.task_ids[0], total=total, completed=done, description=whose)

        yield tell


def _warnings(entries: class_folder.Entries, outputs: list[str], listed: Mapping[str, int]) -> Iterator[str]:
    """Warnings about names: anybody may name a file after somebody else, or after the `outputs` of another run."""
    if skipped := sorted([*entries.unrecognized, *outputs]):
        yield f"skipped, because they are not submissions: {_few(skipped)}"
    if entries.alike:
        yield f"folder names that differ only in Unicode composition are taken for one student: {_few(entries.alike)}"
    if entries.merged:
        yield f"several entries are taken for one student's, a folder or archive first: {_few(entries.merged)}"
    for names in entries.similar[:5]:
        yield f"names that look alike are different students: {_few(names)}"
    if listed and (unknown := sorted(entries.students.keys() - listed.keys())):
        yield f"not in the roster, but graded: {_few(unknown)}"


def _summary(out: Path, graded: list[Grade], missing: str) -> int:
    counts = Counter(each.status for each in graded).most_common()
    print(", ".join(f"{number} {status}" for status, number in counts))
    refused = dict.fromkeys((each.student, each.message) for each in graded if each.status == grades.REFUSED)
    for student, message in list(refused)[:20]:
        print(f"refused: {grades.printable(student)}: {message}")
    for each in graded:
        if each.status == grades.FLAGGED:
            print(f"flagged: {grades.printable(each.student)}: {each.exercise.id}: {each.message}")
    if len(refused) > 20:
        print(f"refused: {len(refused) - 20} more, see {out}")
    if missing:
        print(missing)
    unchecked = [each for each in graded if each.status == UNCHECKED]
    for line in _checked_again([*unchecked, *(each for each in graded if each.off_gpu)]):
        print(line)
    if unchecked:
        raise _stop(CANNOT, f"not checked, because this machine cannot: {_many(len(unchecked), 'answer')}")
    return FAILED if refused else OK


def _one_level_too_high(folder: Path, found: Sequence[Submission], paths: Mapping[str, Sequence[Path]]) -> str:
    """The message that every entry holds several hand-ins, with the folder to grade instead."""
    lines = [grades.printable(f"{folder} seems to be one level too high: nothing is graded")]
    lines += [grades.printable(f"  {each.student}: {each.notes[0]}") for each in found[:5]]
    lines += [f"  and {len(found) - 5} more"] if len(found) > 5 else []
    if inner := next((path for each in found for path in paths[each.student] if path.is_dir()), None):
        lines.append(f"Did you mean `course grade {shlex.quote(class_folder.as_text(str(inner)))}`?")
    return "\n".join(lines)


def _checked_again(graded: list[Grade]) -> list[str]:
    """Messages on answers that this machine could not check, or not on its GPU, and the remedy."""
    if not graded:
        return []
    messages = Counter(each.message for each in graded).most_common()
    lines = [f"{_many(number, 'answer')}: {message}" for message, number in messages[:5]]
    lines += [f"{len(messages) - 5} more messages, see the table"] if len(messages) > 5 else []
    return [*lines, "Repair that (`course doctor` says more) and run this again: these answers are checked each time."]


def _unanswered(is_selection: bool, exercises: list[Exercise], missing: list[Exercise], unread: bool) -> str:
    """The message on exercises that nobody answered: their points, and the options that leave them out.

    They count: otherwise one late submission would change everybody's total. `unread`: whether files were refused that
    may hold answers to them.
    """
    if not missing:
        return ""
    text = "except perhaps in refused files, " if unread else ""
    text += f"nobody answered {', '.join(each.name for each in missing)}: "
    text += f"0 of {sum(each.points for each in missing)} points for everybody"
    asked = [f"--only {each.id}" for each in exercises if each not in missing]
    if is_selection or not asked:
        return text
    return f"{text}.\nIf you did not ask for them, grade again with {' '.join(asked)}. Results so far are used again."


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _few(names: list[str]) -> str:
    shown = [grades.printable(name) for name in names[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _stop(code: int, text: str) -> Stop:
    return Stop(code, grades.printable(text))
