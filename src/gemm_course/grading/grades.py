"""From submissions to grades: what has to be checked, what each student gets for it, and the table of both."""

from __future__ import annotations

import csv
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemm_course.exercises.manifest import Exercise
from gemm_course.grading import result_cache as journal
from gemm_course.grading.result_cache import Journal
from gemm_course.grading.submissions import Answer, Submission
from gemm_course.judging import pool as judges
from gemm_course.judging.results import FAILED, NOT_ON_GPU, ONLY_ON_GPU, PASSED, TODO, UNCHECKED

MISSING, REFUSED, TOTAL = "missing", "refused", "total"
COLUMNS = ("student", "exercise", "points", "of", "status", "message", "seed")
MAX_MESSAGE = 300
_ORDER = (REFUSED, TODO, FAILED, UNCHECKED, PASSED)  # of versions with equal points, the furthest counts
# What was stopped by the clock, not by its own mistake alone: a busy machine can do that to a right answer. It slows
# loops down, and keeps none in one place.
_BY_THE_CLOCK = re.compile(
    rf"^({ONLY_ON_GPU})?still running after (?![^:]*: the loop in line \d+ makes no progress)"
    r"|s of processor time|\nnot compiled within|GPU.*: it did not end$"
)
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")


@dataclass(frozen=True)
class Grade:
    """What one student gets for one exercise.

    Attributes:
        student: who.
        exercise: for what.
        points: earned.
        status: "passed", "failed", "todo", "missing", "refused" where something was handed in that cannot be
            graded, or "unchecked" where this machine cannot say whether it earns more.
        message: one line: what is wrong, and what was decided about several versions.
        result: `Result.as_dict` of the version that counts; empty where nothing was checked.
    """

    student: str
    exercise: Exercise
    points: int
    status: str
    message: str = ""
    result: dict = field(default_factory=dict)

    @property
    def off_gpu(self) -> bool:
        """Whether the interpreter alone says so, on a machine with a GPU."""
        return _off_gpu(self.result)


def grade(
    submissions: Sequence[Submission],
    exercises: Sequence[Exercise],
    seed: int,
    kept: Journal,
    jobs: int,
    tell: Callable[[int, int, str], None],
) -> list[Grade]:
    """Grade everybody.

    Args:
        submissions: from `handed_in.collect`.
        exercises: that are graded.
        seed: of the inputs, the same for everybody.
        kept: what need not be checked again; what is checked goes there at once, unless something that this machine
            lacks had its say in it.
        jobs: how many answers are checked at a time.
        tell: called with the number of checks that are done, of all, and whose is next or was last.

    Returns:
        One grade for each student and exercise, by student, in the order of the exercises.

    Raises:
        RuntimeError: answers cannot be checked on this machine.
    """
    tasks: dict[str, judges.Task] = {}
    owner: dict[str, str] = {}
    for handed_in in submissions:
        for exercise in exercises:
            for answer in handed_in.answers.get(exercise.name, ()):
                if answer.refused:
                    continue
                key = journal.key(exercise.name, answer.source, seed)
                owner.setdefault(key, f"{handed_in.student} {exercise.id}")
                tasks.setdefault(key, judges.Task(key, exercise, answer.source, seed))
    todo = [task for key, task in tasks.items() if kept.get(key) is None]
    results = {key: kept.get(key) for key in tasks}
    for task, result in _checked(todo, jobs, len(tasks), owner, tell):
        results[task.key] = result
        if result is not None and result["status"] != UNCHECKED and not _off_gpu(result):
            kept.put(task.key, result)
    return [_grade(each, exercise, seed, results) for each in submissions for exercise in exercises]


def _checked(
    todo: list[judges.Task], jobs: int, total: int, owner: dict[str, str], tell: Callable[[int, int, str], None]
) -> Iterator[tuple[judges.Task, dict | None]]:
    """The result of each task; what the clock ended beside other checks is checked again with the machine to itself."""
    done, last, again = total - len(todo), "", []

    def waiting():
        tell(done, total, last)

    several = min(jobs, len(todo)) > 1
    for task, result in judges.check_all(todo, jobs, waiting) if todo else ():
        last = owner[task.key]
        if several and result is not None and _by_the_clock(result):
            again.append(task)
            continue
        done += 1
        tell(done, total, last)
        yield task, result
    for task, result in judges.check_all(again, 1, waiting) if again else ():
        done, last = done + 1, owner[task.key]
        tell(done, total, last)
        yield task, result


def _off_gpu(result: dict) -> bool:
    return result.get("message", "").startswith(NOT_ON_GPU)


def _by_the_clock(result: dict) -> bool:
    messages = [result["message"], *(each["message"] for each in result["properties"])]
    return any(_BY_THE_CLOCK.search(message) for message in messages)


def _grade(handed_in: Submission, exercise: Exercise, seed: int, results: dict[str, dict | None]) -> Grade:
    versions = handed_in.answers.get(exercise.name, [])
    if not versions and handed_in.notes:
        return Grade(handed_in.student, exercise, 0, REFUSED, printable("; ".join(handed_in.notes)))
    if not versions:
        return Grade(handed_in.student, exercise, 0, MISSING, "nothing was handed in")
    grades = [_of_version(handed_in.student, exercise, answer, seed, results) for answer in versions]
    best = max(range(len(grades)), key=lambda i: (grades[i].points, _ORDER.index(grades[i].status), -i))
    found = grades[best]
    if len(versions) == 1:
        return found
    more = handed_in.more.get(exercise.name, 0)
    note = f"the best of {len(versions)} versions: {printable(versions[best].where, MAX_MESSAGE // 3)}"
    note += f"; {more} more were not looked at" if more else ""
    said, status = found.message, found.status
    if status != PASSED and (open_ones := [each.message for each in grades if each.status == UNCHECKED]):
        said, status = open_ones[0], UNCHECKED  # it may be worth more than the best of the others
    message = f"{printable(said, MAX_MESSAGE - len(f' ({note})'))} ({note})" if said else note
    return Grade(found.student, exercise, found.points, status, message, found.result)


def _of_version(student: str, exercise: Exercise, answer: Answer, seed: int, results: dict[str, dict | None]) -> Grade:
    if answer.refused:
        return Grade(student, exercise, 0, REFUSED, printable(f"{answer.where}: {answer.refused}"))
    result = results[journal.key(exercise.name, answer.source, seed)]
    if result is None:
        message = "the process that checks answers died of it, twice: look at it by hand"
        return Grade(student, exercise, 0, REFUSED, message)
    points = sum(each["points"] for each in result["properties"] if each["status"] == "pass")
    return Grade(student, exercise, points, result["status"], printable(_first_failure(result)), result)


def unanswered(submissions: Sequence[Submission], grades: Iterable[Grade]) -> list[Exercise]:
    """The exercises to which nobody handed in an answer: nothing, or the hole as it was handed out.

    Args:
        submissions: from `handed_in.collect`.
        grades: what they got, from `grade`.
    """
    answers = {each.student: each.answers for each in submissions}
    begun: dict[Exercise, bool] = {}
    for each in grades:
        # Where something cannot be read, and no name says what it is, it is no answer to every exercise.
        tried = each.status not in (MISSING, TODO) and each.exercise.name in answers[each.student]
        begun[each.exercise] = begun.get(each.exercise, False) or tried
    return [exercise for exercise, tried in begun.items() if not tried]


def _first_failure(result: dict) -> str:
    failed = (f"{each['title']}: {each['message']}" for each in result["properties"] if each["status"] == "fail")
    message = result["message"] or next(failed, "")
    return " ".join(filter(None, map(str.strip, message.splitlines())))


def printable(text: str, most: int = MAX_MESSAGE) -> str:
    """Text from anyone, on one line, of bounded length, with nothing in it that a terminal or a file could not take.

    Args:
        text: what they wrote.
        most: so many characters. What is longer is cut between two words, or in one that is very long.
    """
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    if len(text) <= most:
        return text
    words = text[:most].rpartition(" ")[0].rstrip()
    return f"{words if len(words) > most // 2 else text[: most - 1]}…"


def rows(grades: Iterable[Grade], seed: int) -> Iterator[tuple]:
    """The table's rows, without its header: each student's grades and then their total.

    Args:
        grades: from `grade`.
        seed: of the inputs.

    Yields:
        One value for each of `COLUMNS`.
    """
    by_student: dict[str, list[Grade]] = {}
    for each in grades:
        by_student.setdefault(each.student, []).append(each)
    for student, theirs in by_student.items():
        for each in theirs:
            yield student, each.exercise.name, each.points, each.exercise.points, each.status, each.message, seed
        passed = sum(each.status == PASSED for each in theirs)
        points, possible = sum(each.points for each in theirs), sum(each.exercise.points for each in theirs)
        yield student, TOTAL, points, possible, "", f"{passed} of {len(theirs)} passed", seed


def write_csv(path: Path, table: Iterable[tuple]) -> None:
    """Write the table, whole or not at all.

    Args:
        path: of the file, which is replaced.
        table: from `rows`.

    Raises:
        OSError: it cannot be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        # With a mark at its start, without which a spreadsheet does not take it for UTF-8.
        with os.fdopen(handle, "w", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows([_cell(value) for value in row] for row in table)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _cell(value: object) -> object:
    """A cell that a spreadsheet takes for text or a number, never for a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if _FORMULA.match(text) else text
