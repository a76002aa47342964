"""Whether an entry of a folder of submissions has the work of several people, as it has one level too high.

Only names of folders and files tell, so the answer can be wrong. A false alarm costs the grader an option; a class that
is merged costs students their grades. So in doubt there are several people.

Names side by side are compared, whichever exercises they are about. Two of these are two people:

- words, unless they are common for versions (`old`, `week 3`), the exercise's or the student's name;
- numbers above 9 that stand alone, even if they may be years or dates (17, 2024, 20240501);
- letters that stand alone, as a folder's name or before an exercise's (`a_01_offsets`);
- the student's own name, with another number right after it (`hi`, `hi2`).

These are one student's, and a class that is named so is merged:

- numbers up to 9, ordinals (10th), copies' numbers in parentheses, numbers with separators (1.2, 2024-05-01);
- numbers below 1,000, years and dates after a version's word (`submission 17`), or apart from one's own name (`ann 2`);
- letters after an exercise's name or beside a number or a version's word (`01_offsets_b`, `4b`, `part b`);
- folders that differ only in their exercise's number or words (`masks`, 13, `e13`);
- two people, where one has no such name: it is a version's word (`Best`), or there are only loose notebooks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from gemm_course.exercises.manifest import Exercise
from gemm_course.grading.submissions import CANVAS, MOODLE, match_name, platform_student

# What students call versions of their work, and the folders in which they, or nbgrader, keep it.
_VERSIONS = """
    after again alt answer answers archive assignment assignments attempt attempts autograded backup backups bak before
    best better chapter checkpoint checkpoints clean cleaned colab copies copy corrected course day debug desktop docs
    documents done download downloads draft drafts earlier edited ex exercise exercises experiment experiments extra
    feedback final finished first fix fixed folder gemm grouped hand handed history home homework hw ii iii improved
    ins ipynb json kaggle kopie lab laptop last late latest lesson lessons level local main master mine module my
    myself nd neu new newer newest no notebook notebooks nr ok old older oldest one original other others own part
    phase play playground previous problem problems project projects ps question r rd redo release repo repository
    resubmission resubmit rev revised revision round run saved scratch second session set sheet slow solution solutions
    solved source src st stage step stuff submission submissions submit submitted task tasks temp test tested testing
    tests th third tmp todo tried tries triton try two txt unfinished unit untitled update updated upload uploads v ver
    version versions versuch von week weeks wip work working works wrong yours zip
"""
# These are beside other words of a version's. Alone they are somebody's, such as An.
_LITTLE = {"an", "and", "for", "from", "in", "of", "on", "or", "the", "to", "with", "without"}
_NO_NAMES = _LITTLE.union(_VERSIONS.split())
_WORD = re.compile(r"([^\W\d_]*)([\s_.-]*)(\d*)")
_LETTER = re.compile(r"([a-z])(?:\.[a-z]+)*[\s_-]*", re.IGNORECASE)
_DATE = re.compile(r"(19|20)\d\d([01]\d[0-3]\d)?")
# A copy's number; a date with separators, or a version such as 1.2; a date and a time; 2nd.
_NO_NUMBER = re.compile(
    r"\(\d{1,9}\)"
    r"|(?<![^\W_])(?:(?:19|20)?\d\d|\d)(?:[-_.\s](?:(?:19|20)?\d\d|\d))+(?!\d)"
    r"|(?<!\d)(?:19|20)\d{6}[-_.\sT]\d{4}(?:\d\d)?(?!\d)"
    r"|(?<!\d)\d+(?=(?:st|nd|rd|th)(?![^\W\d_]))"
)


_NAME, _NUMBER, _ALONE = "", "#", "a-z"


class _Label(NamedTuple):
    """What may tell whose a file or folder is."""

    kind: str  # only labels of one kind are compared: `_NAME`, `_NUMBER`, `_ALONE`, or a word of the student's name
    text: str
    shown: str


def people_in(places: Mapping[str, Iterable[str]], student: str, exercises: Sequence[Exercise]) -> list[str]:
    """The people whose work is in somebody's entry, at least two; none if it is one student's.

    Args:
        places: by exercise name, the paths of its notebooks in the entry.
        student: the entry's name.
        exercises: those whose names are in files' names.
    """
    words = {each.name: _words(f"{each.name} {each.function}") for each in exercises}
    paths = [(exercise, PurePosixPath(path)) for exercise in places for path in places[exercise]]
    found = [(words[exercise], (*path.parts[:-1], path.stem)) for exercise, path in paths]
    topics: dict[str, set[str]] = {}  # of each file and folder: the words of all exercises in it
    for theirs, parts in found:
        for part in parts:
            topics[part] = topics.get(part, theirs) & theirs
    own = _words(student)
    labels = {part: _labels(part, own, topic, exercises) for part, topic in topics.items()}
    beside: dict[tuple, dict[str, str]] = {}
    for _, parts in found:
        where: tuple = ()
        for depth, part in enumerate(parts):
            for kind, text, shown in labels[part]:
                beside.setdefault((where, kind and (depth, kind)), {}).setdefault(text, shown)
            where += tuple(each.text for each in labels[part] if each.kind == _NAME)
    most = max(beside.values(), key=len, default={})
    return sorted(most.values()) if len(most) > 1 else []


def _words(text: str) -> set[str]:
    """The words and the numbers of a text."""
    return {part.lstrip("0") for letters, _, digits in _WORD.findall(text.casefold()) for part in (letters, digits)}


def _labels(part: str, own: set[str], topic: set[str], exercises: Sequence[Exercise]) -> list[_Label]:
    """Those in the name of a file or folder; `own` and `topic` are the words of the student's name and the exercise."""
    if student := platform_student(part, CANVAS, MOODLE):
        return [_Label(_NAME, student, student)]
    _, found = match_name(part, exercises)
    sides = (part[: found.start()], part[found.end() :]) if found else (part,)
    words = [word for side in sides for word in _WORD.findall(_NO_NUMBER.sub(" ", side)) if word[0] or word[2]]
    known, names, numbers, labels = own | topic, [], [], []
    for shown, gap, digits in words:
        letters, number = shown.casefold(), digits.lstrip("0")
        if _is_name(letters, digits, known):
            names.append((f"{letters}{'' if number in topic else digits}", f"{shown}{digits}"))
        if not letters and len(number) > 1 and number not in known:
            numbers.append(digits)
        if letters and letters in own and letters not in _NO_NAMES:
            glued = "" if gap or number in own or _DATE.fullmatch(digits) else digits
            labels.append(_Label(letters, glued, f"{shown}{glued}"))
    if not names and words and all(shown.casefold() in _LITTLE - own for shown, _, _ in words):
        names = [(shown.casefold(), shown) for shown, _, _ in words]
    if names:
        labels.append(_Label(_NAME, *map(" ".join, zip(*names))))
    elif (letter := _LETTER.fullmatch(sides[0])) and letter[1].casefold() not in known:
        labels.append(_Label(_ALONE, letter[1].casefold(), letter[1]))
    return [*labels, _Label(_NUMBER, " ".join(numbers), " ".join(numbers))] if numbers else labels


def _is_name(letters: str, digits: str, known: set[str]) -> bool:
    if not letters or letters in _NO_NAMES or letters in known:
        return len(digits) > 3 and not _DATE.fullmatch(digits) and digits.lstrip("0") not in known
    # A letter alone is a version's, as in 4b; with a number it may be a student's.
    return len(letters) > 1 or not letters.isascii() or bool(digits)
