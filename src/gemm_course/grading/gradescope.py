"""Grades as Gradescope wants them: a results.json for each student, one test for each property of each answer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from gemm_course.grading.archives import is_ignored
from gemm_course.grading.grades import Grade, by_student
from gemm_course.judging.results import PASSED, UNCHECKED

FILE = "results.json"
MAX_NAME_BYTES = 255


def results(grades: Sequence[Grade], seed: int) -> dict:
    """One student's results, in the format of Gradescope's autograder. It adds up the tests' scores itself."""
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
    return {
        "output": "\n".join(lines),
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


def write(folder: Path, grades: Iterable[Grade], seed: int) -> None:
    """Write `folder/STUDENT/results.json` for each student; raises OSError if that is impossible."""
    for student, theirs in by_student(grades).items():
        target = folder / _folder_name(student)
        target.mkdir(parents=True, exist_ok=True)
        text = json.dumps(results(theirs, seed), indent=1)
        (target / FILE).write_text(text + "\n", encoding="utf-8")


def _folder_name(student: str) -> str:
    """A student's name; of one that is too long for a file system, its beginning and a digest."""
    if len(student.encode()) <= MAX_NAME_BYTES:
        return student
    digest = hashlib.sha256(student.encode()).hexdigest()[:16]
    return f"{student.encode()[: MAX_NAME_BYTES - 17].decode(errors='ignore')}-{digest}"


def written_in(folder: Path) -> list[Path]:
    """The folders among submissions that hold what `write` writes and nothing else; none if they cannot be read."""
    students = {Path(entry.path): _entries(entry) for entry in _entries(folder)}
    return [path for path, inside in students.items() if inside and all(map(_is_output, inside))]


def _is_output(student: os.DirEntry) -> bool:
    return [(each.name, each.is_file(follow_symlinks=False)) for each in _entries(student)] == [(FILE, True)]


def _entries(folder: Path | os.DirEntry) -> list[os.DirEntry]:
    """The entries of a folder; none if it is a link, is no folder or cannot be read."""
    if isinstance(folder, os.DirEntry) and folder.is_symlink():
        return []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [each for each in entries if not is_ignored(each.name)]
    return []
