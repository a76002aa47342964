"""The roster of a class: who should have handed something in, and how late it was."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from gemm_course.grading.class_folder import Submission, as_text

STUDENT, DAYS_LATE = "student", "days_late"
MAX_MB = 4


def read(path: Path) -> dict[str, int]:
    """Each student's days late, begun days counted as whole ones, from a CSV file with a header.

    The column "student" has the names as in the folder of submissions; "days_late" may be missing or empty.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such table; with the line.
    """
    try:
        data = path.read_bytes()
        if len(data) > MAX_MB << 20:
            raise ValueError(f"it has more than {MAX_MB} MB")
        table = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), skipinitialspace=True)
        if STUDENT not in (table.fieldnames or ()):
            raise ValueError(f"its first line must name a column {STUDENT!r}, and may name {DAYS_LATE!r}")
        found: dict[str, int] = {}
        for row in table:
            student = as_text((row[STUDENT] or "").strip())
            if student in found:
                raise ValueError(f"line {table.line_num}: {student} is there twice")
            if student:
                found[student] = _days(row.get(DAYS_LATE), table.line_num)
        return found
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no roster: it is not text in UTF-8") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is no roster: {error}") from None


def _days(text: str | None, line: int) -> int:
    try:
        days = float((text or "").strip() or 0)
        if 0 <= days < math.inf:
            return math.ceil(days)
    except ValueError:
        pass
    raise ValueError(f"line {line}: {DAYS_LATE} must be a number of at least 0, got {text!r}")


def with_absentees(found: Sequence[Submission], roster: Mapping[str, int]) -> list[Submission]:
    """The submissions, and an empty one for each student of the roster who handed in nothing; sorted by student."""
    absent = [Submission(student) for student in roster.keys() - {each.student for each in found}]
    return sorted([*found, *absent], key=lambda each: each.student)
