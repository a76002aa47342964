"""The students in a folder of submissions, by the names of its entries alone. No file is read here.

The name of an exercise's notebook, anywhere in a file's name, says which exercise a file answers. If no name does, the
functions that its cells define say it.
"""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gemm_course.exercises.manifest import Exercise
from gemm_course.grading import hand_in_files

# Canvas: name_userid_submissionid_file or name_LATE_userid_submissionid_file; the second number changes with each file.
CANVAS = re.compile(r"([^\W_]+)_(?:LATE_)?(\d{3,})_\d{3,}_.+")
# Moodle: name_participant_assignsubmission_file, of a folder or in front of a file's name.
MOODLE = re.compile(r"(.+?)_(\d+)_assignsubmission_(?:file|onlinetext)(?:_.*)?")
# Marks of copies, which browsers and JupyterLab add once or several times. A number alone may be a student's.
_COPY_OF = re.compile(r"(copy of|kopie von) ", re.IGNORECASE)
_COPY = re.compile(r"(\(\d{1,9}\)|(?<![^\W_])copy ?\d{0,9})$", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """One version of an answer."""

    where: str  # its notebook's path in the hand-in, and the cell if several may be the answer
    source: str = ""  # of the cell that holds it; empty where it was refused
    refused: str = ""  # why; empty otherwise
    hole: bool = False  # whether something in it still has to be written
    shape: str = ""  # a digest that is the same for the same code, whatever its comments, layout and names


@dataclass
class Submission:
    """The work of one student."""

    student: str  # name of the folder or file
    # By exercise name, the versions that are graded, in the order of `hand_in`, never two of the same text. A file of
    # another kind with an exercise's name is one refused answer, where there is no notebook.
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)  # by exercise name, how many versions there were beyond those
    notes: list[str] = field(default_factory=list)  # unreadable files of no known exercise, and why
    one_level_too_high: bool = False  # all of it was refused because it holds several hand-ins


class Entries(NamedTuple):
    """The entries of a folder of submissions."""

    students: dict[str, list[Path]]  # sorted: the files and folders of each
    unrecognized: list[str]  # names of entries that are no submissions
    alike: list[str]  # students with several folders whose names differ only in the composition of letters
    merged: list[str]  # students with a folder or archive, and other entries beside it
    similar: list[list[str]]  # students whose names look alike: another case, or letters of other alphabets


def discover(folder: Path, exercises: Sequence[Exercise], ignore: Collection[Path] = ()) -> Entries:
    """Group the entries of a folder by student. It holds a folder, a zip file or notebooks for each.

    Each entry belongs to one student. Raises OSError if the folder cannot be read.
    """
    if folder.is_file() and hand_in_files.file_kind(folder.name) in (hand_in_files.ZIP, hand_in_files.ARCHIVE):
        raise NotADirectoryError(errno.ENOTDIR, "unpack it", str(folder))
    entries: dict[str, list[Path]] = {}
    unrecognized = []
    ignored = {path.resolve() for path in ignore}
    for name in sorted(os.listdir(folder)):
        path = folder / name
        link = path.is_symlink()
        if hand_in_files.is_ignored(name) or (not link and path.resolve() in ignored):
            if _is_hidden_work(path):
                unrecognized.append(name)
            continue
        if path.is_dir() and not link:
            text = as_text(name)
            entries.setdefault(platform_student(text, MOODLE) or text, []).append(path)
        elif link or hand_in_files.file_kind(name) != hand_in_files.OTHER:
            entries.setdefault(_student(path, exercises), []).append(path)
        else:
            unrecognized.append(name)
    folders = {who: [path.name for path in paths if path.is_dir()] for who, paths in entries.items()}
    alike = [who for who, names in folders.items() if len(names) > 1 and len({*map(as_text, names)}) == 1]
    looks: dict[str, list[str]] = {}
    for who in sorted(entries):
        looks.setdefault(_look(who), []).append(who)
    similar = [names for names in looks.values() if len(names) > 1]
    merged = [who for who, paths in entries.items() if len(paths) > 1 and any(map(_holds_several, paths))]
    return Entries(dict(sorted(entries.items())), unrecognized, sorted(alike), sorted(merged), similar)


def _is_hidden_work(path: Path) -> bool:
    """True for a notebook or archive that is hidden, such as `.zip`, and is no file of a Mac's beside another one."""
    hidden = path.name.startswith(".") and not path.name.startswith("._")
    return hidden and hand_in_files.file_kind(path.name) != hand_in_files.OTHER and not path.is_dir()


def _holds_several(path: Path) -> bool:
    return path.is_dir() or hand_in_files.file_kind(path.name) == hand_in_files.ZIP


# Letters of other alphabets, and digits, that look like Latin letters: Cyrillic, Greek, dotless and phonetic ones.
_LOOKS_LIKE = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u051d\u04bb\u043a\u043c\u0442\u043d\u0432"
    "\u03b1\u03bf\u03c1\u03bd\u03b9\u03ba\u03c4\u03c5\u03c7\u0131\u0237\u0251\u0261" "10",
    "aeopcyxijsdqwhkmthb" "aopviktuxijag" "lo",
)  # fmt: skip


def _look(name: str) -> str:
    """A name as it looks: the same for other letters of the same look, for capitals, and for other separators."""
    seen = re.sub(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})", "", name)  # as ``as_text`` shows what is invisible
    plain = unicodedata.normalize("NFKC", seen).casefold().translate(_LOOKS_LIKE)
    return re.sub(r"[\W_]+", " ", plain).strip()


# Printable letters without ink: fillers, selectors of variants, the empty braille cell.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def as_text(name: str) -> str:
    r"""A file's name as text: the same for the same letters, however composed.

    Bytes that are not UTF-8, and letters that are invisible or reverse the text, are shown as \xNN and \uNNNN.
    """
    text = unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))
    visible = (letter.isprintable() and not _BLANK.match(letter) for letter in text)
    return "".join(letter if shown else ascii(letter)[1:-1] for letter, shown in zip(text, visible))


def _without_copies(text: str) -> str:
    """A part of a file's name without the marks of a copy."""
    found = _COPY_OF.match(text)
    text = text[found.end() :] if found else text
    while found := _COPY.search(text):
        text = text[: found.start()].rstrip(" _-")
    return text


def platform_student(name: str, *platforms: re.Pattern) -> str:
    """The student that a learning platform names in a file's or folder's name; empty if there is none."""
    return next((f"{found[1]}_{found[2]}" for each in platforms if (found := each.fullmatch(name))), "")


def _student(path: Path, exercises: Sequence[Exercise]) -> str:
    """A file's student: its name without the exercise's. All files with no other name are one student's."""
    stem = re.sub(r"(\.tar|\.ipynb)?\.\w+$", "", as_text(path.name))
    if student := platform_student(stem, MOODLE, CANVAS):
        return student
    _, found = match_name(stem, exercises)
    if found is None:
        return stem
    parts = map(_without_copies, (stem[: found.start()], stem[found.end() :]))
    return next(filter(None, (part.strip(" _-.") for part in parts)), path.resolve().parent.name or "submission")


def match_name(stem: str, exercises: Sequence[Exercise]) -> tuple[Exercise | None, re.Match | None]:
    """The exercise whose name is in a file's name, and its place there."""
    flat = re.sub(r"[\s.-]", "_", stem)
    found = [(each, re.search(each.name, flat, re.IGNORECASE | re.ASCII)) for each in exercises]
    return max((pair for pair in found if pair[1]), key=lambda pair: len(pair[0].name), default=(None, None))
