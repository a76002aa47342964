"""Feedback files for students, and a report of identical answers for instructors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gemm_course.exercises.manifest import Exercise
from gemm_course.grading import gradescope
from gemm_course.grading.class_folder import Submission
from gemm_course.grading.grades import Grade, Penalty, by_student, total
from gemm_course.judging.results import Result

FILE = gradescope.FEEDBACK
IDENTICAL = ("exercise", "same", "students")
SAME_TEXT, SAME_CODE = "text", "code, with other names, comments or layout"


def text(student: str, grades: Sequence[Grade], penalty: Penalty) -> str:
    """Everything that the checks say to one student: each exercise as `course check` shows it, and the total.

    Only titles and points begin a line: messages hold text of the answers', and are indented.
    """
    points, possible, note = total(student, grades, penalty)
    parts = [f"{student}: {points:g} of {possible} points ({note})"]
    for grade in grades:
        if grade.result is None:
            parts.append(f"Exercise {grade.exercise.id} · {grade.exercise.title}\n{grade.status}: {grade.message}")
        else:
            parts.append("\n".join(_lines(grade.result)) + (f"\n\n{grade.note}" if grade.note else ""))
    return "\n\n\n".join(parts) + "\n"


def _lines(result: Result) -> Iterator[str]:
    for kind, line in result.lines():
        indent = "" if kind in ("title", "total") else "  "
        yield from (f"{indent}{part}".rstrip() for part in line.splitlines() or [""])


def write(folder: Path, grades: Iterable[Grade], penalty: Penalty) -> None:
    """Write `folder/STUDENT/feedback.txt` for each student; raises OSError if that is impossible."""
    texts = {student: text(student, theirs, penalty) for student, theirs in by_student(grades).items()}
    gradescope.write_files(folder, FILE, texts)


def identical(submissions: Sequence[Submission], exercises: Sequence[Exercise]) -> Iterator[tuple[str, str, str]]:
    """The rows of a report, one value for each of `IDENTICAL`: answers that several students handed in.

    Compared are all versions in which nothing is left to write. The answers to some exercises have a few lines, so that
    the same code proves nothing.
    """
    for exercise in exercises:
        groups: dict[str, dict[str, str]] = {}  # by shape, each student's text
        for submission in submissions:
            for answer in submission.answers.get(exercise.name, ()):
                if answer.shape and not answer.hole:
                    groups.setdefault(answer.shape, {}).setdefault(submission.student, answer.source)
        for texts in groups.values():
            if len(texts) > 1:
                same = SAME_TEXT if len(set(texts.values())) == 1 else SAME_CODE
                yield exercise.name, same, ", ".join(texts)
