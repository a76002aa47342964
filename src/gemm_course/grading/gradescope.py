"""Grades as Gradescope wants them: a results.json for each student, one test for each property of each answer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gemm_course.grading.grades import NO_PENALTY, Grade, Penalty, by_student, total
from gemm_course.grading.hand_in_files import is_ignored
from gemm_course.judging.results import PASSED, UNCHECKED

FILE, FEEDBACK = "results.json", "feedback.txt"
MAX_NAME_BYTES = 255


def results(grades: Sequence[Grade], seed: int, penalty: Penalty = NO_PENALTY) -> dict:
    """One student's results, in the format of Gradescope's autograder, which adds up the tests' scores itself."""
    tests = []
    for grade in grades:
        properties = grade.result.properties if grade.result else []
        if not properties:
            tests.append(_test(grade.exercise.id, grade.exercise.title, 0, grade.exercise.points, grade.message))
        for number, each in enumerate(properties, 1):
            earned = each.points if each.status == "pass" else 0
            output = each.message or (grade.message if each.status == "skip" else "")
            tests.append(_test(f"{grade.exercise.id}.{number}", each.title, earned, each.points, output))
    lines = [f"{sum(grade.status == PASSED for grade in grades)} of {len(grades)} exercises passed"]
    # These messages belong to no property: a remark on a pass, or a better version that could not be checked.
    lines += [f"{each.exercise.id}: {each.message}" for each in grades if each.status == UNCHECKED or each.off_gpu]
    points, _, note = total(grades[0].student, grades, penalty)
    late = points != sum(each.points for each in grades)
    return {
        **({"score": points} if late else {}),
        "output": "\n".join([*lines, *([note] if late else [])]),
        "output_format": "text",
        "test_output_format": "text",
        "stdout_visibility": "hidden",
        "extra_data": {"seed": seed},
        "tests": tests,
    }


def _test(number: str, name: str, score: int, possible: int, output: str) -> dict:
    return {
        "number": number,
        "name": name,
        "score": score,
        "max_score": possible,
        "status": "passed" if score == possible else "failed",
        "output": output,
        "visibility": "visible",
    }


def write(folder: Path, grades: Iterable[Grade], seed: int, penalty: Penalty = NO_PENALTY) -> None:
    """Write `folder/STUDENT/results.json` for each student; raises OSError if that is impossible."""
    made = {student: results(theirs, seed, penalty) for student, theirs in by_student(grades).items()}
    write_files(folder, FILE, {student: json.dumps(each, indent=1) + "\n" for student, each in made.items()})


def write_files(folder: Path, name: str, texts: Mapping[str, str]) -> None:
    """Write `folder/STUDENT/name` for each student; raises OSError if that is impossible."""
    for student, text in texts.items():
        target = folder / _folder_name(student)
        target.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text, encoding="utf-8", errors="backslashreplace")


def _folder_name(student: str) -> str:
    """A student's name; of one that is too long for a file system, its beginning and a digest."""
    if len(student.encode()) <= MAX_NAME_BYTES:
        return student
    digest = hashlib.sha256(student.encode()).hexdigest()[:16]
    return f"{student.encode()[: MAX_NAME_BYTES - 17].decode(errors='ignore')}-{digest}"


def written_in(folder: Path) -> list[Path]:
    """The folders among submissions that hold what we write and nothing else; none if they cannot be read."""
    students = {Path(entry.path): _entries(entry) for entry in _entries(folder)}
    return [path for path, inside in students.items() if inside and all(map(_is_output, inside))]


def _is_output(student: os.DirEntry) -> bool:
    inside = {(each.name, each.is_file(follow_symlinks=False)) for each in _entries(student)}
    return bool(inside) and inside <= {(FILE, True), (FEEDBACK, True)}


def _entries(folder: Path | os.DirEntry) -> list[os.DirEntry]:
    """The entries of a folder; none if it is a link, is no folder or cannot be read."""
    if isinstance(folder, os.DirEntry) and folder.is_symlink():
        return []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [each for each in entries if not is_ignored(each.name)]
    return []
