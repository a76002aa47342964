"""Whether an entry of a folder of submissions has the work of several people, as it has one level too high.

Only names tell. Versions of one student's work are named by words such as `old`, `v2` or `exercises`, people by words
that nobody can list. So all other words are taken for people's: a class is never merged. The price is a false alarm now
and then, which the grader can overrule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from gemm_course.exercises.manifest import Exercise
from gemm_course.grading.submissions import CANVAS, MOODLE, match_name, platform_student

# What students call versions of their work, and the folders in which they, or nbgrader, keep it.
_VERSIONS = """
    after again alt an and answer answers archive assignment assignments attempt attempts autograded backup backups
    bak before best better checkpoint checkpoints clean cleaned copies copy corrected course debug desktop docs
    documents done download downloads draft drafts earlier edited ex exercise exercises experiment experiments extra
    feedback final finished first fix fixed folder for from gemm grouped hand handed history home homework hw
    improved in ins ipynb json kopie last late latest lesson lessons main master mine module my myself nd neu new
    newer newest notebook notebooks of ok old older oldest one or original other others own part play playground
    previous problem problems project projects ps r rd redo release repo repository resubmission resubmit rev
    revised revision saved scratch second set sheet slow solution solutions solved source src st stuff submission
    submissions submit submitted task tasks temp test tested testing tests th the third tmp to todo tried tries try
    two txt unfinished untitled update updated upload uploads v ver version versions versuch von week weeks wip with
    without work working works wrong yours zip
"""
_NO_NAMES = frozenset(_VERSIONS.split())
_WORD = re.compile(r"([^\W\d_]*)[\s_.-]*(\d*)")
_DATE = re.compile(r"(19|20)\d\d([01]\d[0-3]\d)?")


def people_in(places: Mapping[str, Iterable[str]], student: str, exercises: Sequence[Exercise]) -> list[str]:
    """The people whose work is in somebody's entry, at least two; none if it is one student's.

    There are several where notebooks of the same exercise differ in a word, of a folder's name or their own, that is
    neither a common one nor part of the student's name.

    Args:
        places: by exercise name, the paths of its notebooks in the entry.
        student: the entry's name.
        exercises: those whose names are in files' names.
    """
    own = {part for pair in _WORD.findall(student.casefold()) for part in pair}
    seen: dict[str, str] = {}
    beside: dict[tuple, dict[str, str]] = {}
    for exercise, paths in places.items():
        for path in map(PurePosixPath, paths):
            where: tuple = (exercise,)
            for part in (*path.parts[:-1], path.stem):
                if part not in seen:
                    seen[part] = _name(part, own, exercises)
                if name := seen[part]:
                    beside.setdefault(where, {}).setdefault(name.casefold(), name)
                    where += (name.casefold(),)
    found = max(beside.values(), key=len, default={})
    return sorted(found.values()) if len(found) > 1 else []


def _name(part: str, own: set[str], exercises: Sequence[Exercise]) -> str:
    """The words of a file's or folder's name that may name a person; empty if there are none."""
    if student := platform_student(part, CANVAS, MOODLE):
        return student
    _, found = match_name(part, exercises)
    sides = (part[: found.start()], part[found.end() :]) if found else (part,)
    words = [pair for side in sides for pair in _WORD.findall(side)]
    return " ".join(f"{letters}{digits}" for letters, digits in words if _is_name(letters.casefold(), digits, own))


def _is_name(letters: str, digits: str, own: set[str]) -> bool:
    if not letters or letters in _NO_NAMES or letters in own:
        return len(digits) > 3 and not _DATE.fullmatch(digits) and digits not in own
    # A letter alone is a version's, as in 4b; with a number it may be a student's.
    return len(letters) > 1 or not letters.isascii() or bool(digits)
