"""From submissions to grades: the answers to check, the points of each student, and the table of grades."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from course_kernels.files import write_atomically
from gemm_course.exercises.manifest import Exercise
from gemm_course.grading import judge_pool, result_cache
from gemm_course.grading.class_folder import Answer, Submission
from gemm_course.grading.result_cache import ResultCache
from gemm_course.judging.results import FAILED, NOT_ON_GPU, PASSED, TODO, UNCHECKED, Result

MISSING, REFUSED, FLAGGED, TOTAL = "missing", "refused", "flagged", "total"
COLUMNS = ("student", "exercise", "points", "of", "status", "message", "seed")
MAX_MESSAGE = 300
BUDGET_S = 300.0  # of one student's checks: all exercises take a tenth of that
_MAX_PLACE = 60  # of a file's place in a message, so that why it is refused is never cut off
_STATUS_ORDER = (
    TODO,
    REFUSED,
    FLAGGED,
    FAILED,
    UNCHECKED,
    PASSED,
)  # of versions with equal points, the furthest counts
_GOES_ON = re.compile(r"(?:[.,:;?!]|\b(?:and|between))$")  # after these a message's next line needs no mark
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")


@dataclass(frozen=True)
class Grade:
    """The grade of one student for one exercise."""

    student: str
    exercise: Exercise
    points: int
    # `REFUSED`: something was handed in that cannot be graded. `UNCHECKED`: it may earn more on another machine.
    # `FLAGGED`: the static check refused what only an attack on the judge needs.
    status: str
    message: str = ""  # one line: what is wrong, and which of several versions counts
    result: Result | None = None  # of the version that counts; None if no version was checked
    note: str = ""  # the part of the message about versions

    @property
    def off_gpu(self) -> bool:
        """Return whether it was checked in the interpreter alone, on a machine with a GPU."""
        return self.result is not None and _off_gpu(self.result)


def grade(
    submissions: Sequence[Submission],
    exercises: Sequence[Exercise],
    seed: int,
    cache: ResultCache,
    jobs: int,
    report: Callable[[int, int, str], None],
    budget_s: float = BUDGET_S,
) -> list[Grade]:
    """One grade for each student and exercise, by student, in the order of the exercises.

    Each new result goes into the cache at once, unless this machine lacked something that could change it. `report` is
    called with the number of finished checks, of all checks, and whose answer was checked last. After `budget_s`
    seconds of checks, no further answer of a student is checked: a submission may hold 64 that sleep. The first version
    of every exercise comes before all second ones. Raises RuntimeError if answers cannot be checked on this machine.
    """
    tasks: dict[str, judge_pool.Task] = {}
    owners: dict[str, str] = {}
    students: dict[str, set[str]] = {}  # by key, everybody who handed in this answer
    spent: Counter[str] = Counter()  # seconds by student
    pairs = [(submission, exercise) for submission in submissions for exercise in exercises]
    versions = max((len(each) for submission in submissions for each in submission.answers.values()), default=0)
    for version, (submission, exercise) in itertools.product(range(versions), pairs):
        for answer in submission.answers.get(exercise.name, ())[version : version + 1]:
            if not answer.refused:
                key = result_cache.key(exercise.name, answer.source, seed)
                owners.setdefault(key, f"{submission.student} {exercise.id}")
                tasks.setdefault(key, judge_pool.Task(key, exercise, answer.source, seed))
                students.setdefault(key, set()).add(submission.student)
    results = {key: cache.get(key) for key in tasks}

    def note_spent(key: str, seconds: float) -> None:
        spent.update(dict.fromkeys(students[key], seconds))

    def over_budget(task: judge_pool.Task) -> str:
        over = all(spent[each] > budget_s for each in students[task.key])
        return f"not checked: this student's other answers took more than {budget_s:g} s to check" if over else ""

    for key in tasks:
        note_spent(key, cache.seconds(key))
    unknown = [task for key, task in tasks.items() if results[key] is None]
    finished, died = [""] * (len(tasks) - len(unknown)), {}

    def tell():
        report(len(finished), len(tasks), (finished or [""])[-1])

    for task, outcome, seconds in judge_pool.check_all(unknown, jobs, tell, over_budget):
        note_spent(task.key, seconds)
        finished.append(owners[task.key])
        tell()
        if isinstance(outcome, str):
            died[task.key] = outcome
            continue
        result = results[task.key] = msgspec.convert(outcome, Result)
        if result.status != UNCHECKED and not _off_gpu(result):
            cache.put(task.key, result, seconds)
    return [_best_grade(submission, exercise, seed, results | died) for submission, exercise in pairs]


def _off_gpu(result: Result) -> bool:
    return result.message.startswith(NOT_ON_GPU)


def _best_grade(submission: Submission, exercise: Exercise, seed: int, results: dict[str, Result | str]) -> Grade:
    student, versions = submission.student, submission.answers.get(exercise.name, [])
    if not versions and submission.notes:
        return Grade(student, exercise, 0, REFUSED, printable("; ".join(submission.notes)))
    if not versions:
        return Grade(student, exercise, 0, MISSING, "nothing was handed in")
    grades = [_grade_version(student, exercise, answer, seed, results) for answer in versions]
    best = max(range(len(grades)), key=lambda i: (grades[i].points, _STATUS_ORDER.index(grades[i].status), -i))
    grade = grades[best]
    note = _note(submission, exercise, grades, best)
    if not note:
        return grade
    unchecked = [each for each in grades if each.status == UNCHECKED]
    # A version that was not checked may earn more than the best of the others.
    shown = unchecked[0] if unchecked and grade.status != PASSED else grade
    message = f"{printable(shown.message, MAX_MESSAGE - len(f' ({note})'))} ({note})" if shown.message else note
    return replace(grade, status=shown.status, message=message, note=note)


def _note(submission: Submission, exercise: Exercise, grades: list[Grade], best: int) -> str:
    """A note on the version that counts, and on files that could not be graded and might have earned more."""
    notes, versions = [], submission.answers[exercise.name]
    if len(versions) > 1 and grades[best].status != REFUSED:  # its message names the version
        notes.append(f"the best of {len(versions)} versions: {printable(versions[best].where, _MAX_PLACE)}")
    if skipped := submission.skipped.get(exercise.name, 0):
        notes.append(f"{skipped} more were not checked")
    if flagged := [i for i, each in enumerate(grades) if each.status == FLAGGED and i != best]:
        notes.append(f"{FLAGGED}: {grades[flagged[0]].message}")
    refused = [each.message for i, each in enumerate(grades) if each.status == REFUSED and i != best]
    if grades[best].status != PASSED and (refused := [*refused, *submission.notes]):
        more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
        notes.append(f"refused: {printable(refused[0], 2 * _MAX_PLACE)}{more}")
    return "; ".join(notes)


def _grade_version(
    student: str, exercise: Exercise, answer: Answer, seed: int, results: dict[str, Result | str]
) -> Grade:
    if answer.refused:
        return Grade(
            student, exercise, 0, REFUSED, printable(f"{printable(answer.where, _MAX_PLACE)}: {answer.refused}")
        )
    result = results[result_cache.key(exercise.name, answer.source, seed)]
    if isinstance(result, str):
        return Grade(student, exercise, 0, REFUSED, printable(f"{result}: grade it by hand"))
    first = result.first_failure
    message = _on_one_line(result.message or (f"{first.title}: {first.message}" if first else ""))
    if result.flagged:  # anybody may name a file after somebody else
        where = printable(answer.where, _MAX_PLACE)
        text = printable(f"{where}: {message}")
        return Grade(student, exercise, result.points, FLAGGED, text, result, note=f"this is about {where}")
    return Grade(student, exercise, result.points, result.status, printable(message), result)


def _on_one_line(text: str) -> str:
    """A message on one line: sentences are divided, and the learner's lines, which are indented, are quoted."""
    found = ""
    for line in filter(str.strip, text.splitlines()):
        is_code, words = line.startswith("    "), line.strip()
        goes_on = not found or _GOES_ON.search(found) or (words.startswith("(") and not is_code)
        found += ("" if goes_on else ":" if is_code else ";") + (f" `{words}`" if is_code else f" {words}")
    return found.strip()


def unanswered(submissions: Sequence[Submission], grades: Iterable[Grade]) -> list[Exercise]:
    """The exercises that nobody answered: all files have nothing for them, or the hole as handed out.

    A submission's `notes` are about refused files, which may hold answers to any of these exercises. If all files were
    refused, the list is empty.
    """
    answers = {each.student: each.answers for each in submissions}
    answered: dict[Exercise, set[bool]] = {}
    for each in grades:
        known = answered.setdefault(each.exercise, set())
        if each.status in (MISSING, TODO):
            known.add(False)
        elif each.exercise.name in answers[each.student]:
            known.add(True)
    return [exercise for exercise, known in answered.items() if known == {False}]


def printable(text: str, limit: int = MAX_MESSAGE) -> str:
    """A stranger's text on one line, without control characters. Long text is cut, between two words if possible."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    if len(text) <= limit:
        return text
    words = text[:limit].rpartition(" ")[0].rstrip()
    return f"{words if len(words) > limit // 2 else text[: limit - 1]}…"


def by_student(grades: Iterable[Grade]) -> dict[str, list[Grade]]:
    """Each student's grades."""
    found: dict[str, list[Grade]] = {}
    for each in grades:
        found.setdefault(each.student, []).append(each)
    return found


@dataclass(frozen=True)
class Penalty:
    """A deduction for late work: a percentage of the total for each day."""

    percent: int = 0
    days_late: Mapping[str, int] = field(default_factory=dict)  # by student


NO_PENALTY = Penalty()


def total(student: str, grades: Sequence[Grade], penalty: Penalty) -> tuple[float, int, str]:
    """A student's points after the penalty, the points of all exercises, and a line about both."""
    points, possible = sum(each.points for each in grades), sum(each.exercise.points for each in grades)
    note = f"{sum(each.status == PASSED for each in grades)} of {len(grades)} passed"
    days = penalty.days_late.get(student, 0)
    off = min(100, days * penalty.percent)
    if not off:
        return points, possible, note
    late = f"{days} day{'s' * (days != 1)} late: {off} % of {points} points taken off"
    return round(points * (100 - off) / 100, 2), possible, f"{note}; {late}"


def rows(grades: Iterable[Grade], seed: int, penalty: Penalty = NO_PENALTY) -> Iterator[tuple]:
    """The table's rows, one value for each of `COLUMNS`: each student's grades and then their total."""
    for student, theirs in by_student(grades).items():
        for each in theirs:
            yield student, each.exercise.name, each.points, each.exercise.points, each.status, each.message, seed
        points, possible, note = total(student, theirs, penalty)
        yield student, TOTAL, f"{points:g}", possible, "", note, seed


def write_csv(path: Path, table: Iterable[tuple], columns: Sequence[str] = COLUMNS) -> None:
    """Write a table, such as that from `rows`, whole or not at all; raises OSError if that is impossible."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in table)
    # The byte order mark makes spreadsheets read the file as UTF-8.
    write_atomically(path, text.getvalue().encode("utf-8-sig"))


def _cell(value: object) -> object:
    """A cell that a spreadsheet takes for text or a number, never for a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if _FORMULA.match(text) else text
