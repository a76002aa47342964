"""Grades as Gradescope wants them: a results.json for each student, one test for each property of each answer."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from gemm_course.grading import archives as unpack
from gemm_course.grading.grades import Grade
from gemm_course.judging.results import PASSED, UNCHECKED

FILE = "results.json"


def results(grades: Iterable[Grade], seed: int) -> dict:
    """One student's results, in the format of Gradescope's autograder.

    Args:
        grades: of one student.
        seed: of the inputs.

    Returns:
        For JSON. Gradescope adds the tests' scores up.
    """
    tests = []
    for grade in grades:
        properties = grade.result.get("properties", [])
        if not properties:
            tests.append(_test(grade.exercise.id, grade.exercise.title, 0, grade.exercise.points, grade.message))
        for number, each in enumerate(properties, 1):
            earned = each["points"] if each["status"] == "pass" else 0
            output = each["message"] or (grade.message if each["status"] == "skip" else "")
            tests.append(_test(f"{grade.exercise.id}.{number}", each["title"], earned, each["points"], output))
    solved = [grade for grade in grades if grade.status == PASSED]
    said = [f"{len(solved)} of {len(grades)} exercises passed"]
    # No property's output has room for what is said of a pass, or of a better version that could not be checked.
    said += [f"{each.exercise.id}: {each.message}" for each in grades if each.status == UNCHECKED or each.off_gpu]
    return {
        "output": "\n".join(said),
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
    """Write `folder/STUDENT/results.json` for each student.

    Args:
        folder: made if it does not exist.
        grades: of everybody.
        seed: of the inputs.

    Raises:
        OSError: it cannot be written.
    """
    by_student: dict[str, list[Grade]] = {}
    for each in grades:
        by_student.setdefault(each.student, []).append(each)
    for student, theirs in by_student.items():
        target = folder / student
        target.mkdir(parents=True, exist_ok=True)
        text = json.dumps(results(theirs, seed), indent=1)
        (target / FILE).write_text(text + "\n", encoding="utf-8")


def written_in(folder: Path) -> list[Path]:
    """The folders in a folder of submissions that hold what `write` writes and nothing else.

    Args:
        folder: of submissions. Nothing is found in one that cannot be read.
    """
    inside = {each.path: _inside(each) for each in _entries(folder)}
    return [Path(path) for path, students in inside.items() if students and all(map(_results, students))]


def _results(student: os.DirEntry) -> bool:
    return [(each.name, each.is_file(follow_symlinks=False)) for each in _inside(student)] == [(FILE, True)]


def _inside(entry: os.DirEntry) -> list[os.DirEntry]:
    return [] if entry.is_symlink() else _entries(entry)


def _entries(folder: Path | os.DirEntry) -> list[os.DirEntry]:
    """What lies in a folder; nothing where it is none or cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [each for each in entries if not unpack.passed_over(each.name)]
    return []
