"""Who handed in what: finds, in a folder of submissions, each student's answers to each exercise.

An exercise is known by its notebook's name, wherever that stands in the file's name, and where no name says it, by the
function that a cell defines. Nothing is executed.
"""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gemm_course.exercises.manifest import Exercise
from gemm_course.grading import archives as unpack
from gemm_course.grading.archives import File
from gemm_course.notebook_files import cells as submission

MAX_VERSIONS = 4
MAX_ANSWER_KB = 100
NO_NOTEBOOK = "is no notebook: the .ipynb file is wanted"
# Canvas: name_userid_submissionid_file or name_LATE_userid_submissionid_file; the second number changes with each file.
_CANVAS = re.compile(r"([^\W_]+)_(?:LATE_)?(\d{3,})_\d{3,}_.+")
# Moodle: name_participant_assignsubmission_file, of a folder or in front of a file's name.
_MOODLE = re.compile(r"(.+?)_(\d+)_assignsubmission_(?:file|onlinetext)(?:_.*)?")
# What browsers and JupyterLab add to a copy. A number alone may be a student's.
_COPY = re.compile(r"^(copy of|kopie von) |([ _-]*(\(\d+\)|\bcopy ?\d*|_copy ?\d*))+$", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """One version of an answer.

    Attributes:
        where: its notebook's path in what was handed in, and the cell where several may be the answer.
        source: of the cell that holds it; empty where that cannot be had.
        refused: why it cannot; empty otherwise.
        hole: whether something in it still has to be written.
    """

    where: str
    source: str = ""
    refused: str = ""
    hole: bool = False


@dataclass
class Submission:
    """What one student handed in.

    Attributes:
        student: who; the name of the folder or file.
        answers: by exercise name, the versions that are graded, never two of the same text: the last cell of each
            notebook before its others, properly named notebooks first, then the least deeply buried, then the newest.
            Of a file that only its name places, why it is none.
        more: by exercise name, how many versions there were beyond those.
        notes: what could not be looked at, and why.
    """

    student: str
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    more: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def collect(
    folder: Path, exercises: Sequence[Exercise], ignore: Collection[Path] = ()
) -> tuple[list[Submission], list[str]]:
    """Everybody's answers.

    Args:
        folder: holds a folder, a zip file or notebooks for each student.
        exercises: that may be among them.
        ignore: what in it is nobody's submission.

    Returns:
        The submissions, sorted by student, and the names of the files that are none.

    Raises:
        OSError: the folder cannot be read.
    """
    if folder.is_file() and unpack.kind(folder.name) in (unpack.ZIP, unpack.ARCHIVE):
        raise NotADirectoryError(errno.ENOTDIR, "unpack it", str(folder))
    whose: dict[str, list[Path]] = {}
    strangers = []
    ignored = {path.resolve() for path in ignore}
    for name in sorted(os.listdir(folder)):
        path = folder / name
        link = path.is_symlink()
        if unpack.passed_over(name) or (not link and path.resolve() in ignored):
            continue
        if path.is_dir() and not link:
            whose.setdefault(_person(_readable(name), _MOODLE) or _readable(name), []).append(path)
        elif link or unpack.kind(name) != unpack.OTHER:
            whose.setdefault(_student(path, exercises), []).append(path)
        else:
            strangers.append(name)
    # One after the other: what one handed in may fill a good part of the memory.
    found = [sort_out(who, [file for path in whose[who] for file in _files(path)], exercises) for who in sorted(whose)]
    return found, strangers


def _readable(name: str) -> str:
    r"""A file's name as text: the same for the same letters, however composed; bytes that are no UTF-8 as \xNN."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))


def _files(path: Path) -> list[File]:
    """What is in an entry of the folder of submissions."""
    if path.is_symlink():
        return [File(path.name, refused=unpack.LINK)]
    folder = path.is_dir()
    files = unpack.folder(path) if folder else unpack.file(path, path.name)
    # What an archive is called itself says nothing about what is in it.
    inside = [PurePosixPath(each.where).parts[0 if folder else 1 :] for each in files if not each.other]
    people = sorted({who for parts in inside for part in parts if (who := _person(part, _CANVAS, _MOODLE))})
    if len(people) > 1:
        does = "grade that folder by itself" if folder else "unpack it"
        said = f"holds the work of several people ({', '.join(people[:3])}{', …' if len(people) > 3 else ''}): {does}"
        return [File(path.name, refused=said)]
    return files


def _person(name: str, *platforms: re.Pattern) -> str:
    """Whom a learning platform names in a file's or folder's name; empty where none does."""
    return next((f"{found[1]}_{found[2]}" for each in platforms if (found := each.fullmatch(name))), "")


def _student(path: Path, exercises: Sequence[Exercise]) -> str:
    """Whose a file is: its name without the exercise's. Files that carry no other name are one student's."""
    stem = re.sub(r"(\.tar|\.ipynb)?\.\w+$", "", _readable(path.name))
    if who := _person(stem, _MOODLE, _CANVAS):
        return who
    _, found = _named(stem, exercises)
    if found is None:
        return stem
    parts = (_COPY.sub("", stem[: found.start()]), _COPY.sub("", stem[found.end() :]))
    return next(filter(None, (part.strip(" _-.") for part in parts)), path.resolve().parent.name or "submission")


def _named(stem: str, exercises: Sequence[Exercise]) -> tuple[Exercise | None, re.Match | None]:
    """The exercise whose name stands in a file's name, and where it stands."""
    flat = re.sub(r"[\s.-]", "_", stem)
    found = [(each, re.search(each.name, flat, re.IGNORECASE | re.ASCII)) for each in exercises]
    return max((pair for pair in found if pair[1]), key=lambda pair: len(pair[0].name), default=(None, None))


def sort_out(student: str, files: Sequence[File], exercises: Sequence[Exercise]) -> Submission:
    """One student's answers, by exercise.

    Args:
        student: who.
        files: that they handed in.
        exercises: that are graded.
    """
    found = Submission(student)
    named: dict[str, list[tuple[tuple, Answer]]] = {}
    defined: dict[str, list[tuple[tuple, Answer]]] = {}
    others: dict[str, list[Answer]] = {}
    for file in files:
        exercise, _ = _named(PurePosixPath(file.where).stem, exercises)
        if file.other:
            if exercise is not None:
                others.setdefault(exercise.name, []).append(Answer(file.where, refused=NO_NOTEBOOK))
            continue
        cells, refused = [], file.refused
        if not refused:
            try:
                cells = submission.code_cells(file.data, "it")
            except ValueError as error:
                refused = str(error)
        if exercise is not None:
            read = [Answer(file.where, refused=refused)] if refused else _answers(file.where, cells, exercise)
            named.setdefault(exercise.name, []).extend(_ranked(file, read, exercise))
        elif refused:
            found.notes.append(f"{file.where}: {refused}")
        for each in exercises if exercise is None else ():
            if any(submission.defines(cell.source, each.function) for cell in cells):
                ranked = _ranked(file, _answers(file.where, cells, each), each)
                defined.setdefault(each.name, []).extend(ranked)
    for name, versions in {**defined, **named}.items():
        texts: dict[str, Answer] = {}
        for _, each in sorted(versions, key=lambda pair: pair[0]):
            texts.setdefault(each.source or f"refused: {each.where}", each)
        different = list(texts.values())
        found.answers[name] = different[:MAX_VERSIONS]
        if len(different) > MAX_VERSIONS:
            found.more[name] = len(different) - MAX_VERSIONS
    for name, answers in others.items():
        found.answers.setdefault(name, answers[:1])
    if files and not (found.answers or found.notes):
        names = ", ".join(file.where for file in files[:5]) + (", …" if len(files) > 5 else "")
        many = f"{len(files)} files" if len(files) > 1 else "1 file"
        found.notes.append(f"no notebook of an exercise among {many}: {names}")
    return found


def _ranked(file: File, answers: list[Answer], exercise: Exercise) -> list[tuple[tuple, Answer]]:
    """Answers of a notebook with what they are sorted by.

    Readable ones first, holes last; of each notebook the last cell before all others; then those named as they were
    handed out, then the least deeply buried, then the copies with the highest numbers, then the latest.
    """
    path = PurePosixPath(file.where)
    _, name = _named(path.stem, [exercise])
    numbers = re.findall(r"\d{1,9}", path.stem[name.end() :] if name else path.stem)
    copy = int(numbers[-1]) if numbers else 0
    by_file = (path.stem != exercise.name, len(path.parts), -copy, -file.modified, file.where)
    return [((bool(each.refused), each.hole, i, *by_file), each) for i, each in enumerate(answers)]


def _answers(where: str, cells: list[submission.Cell], exercise: Exercise) -> list[Answer]:
    """What a notebook holds of answers to an exercise, at least one."""
    try:
        found = submission.versions(cells, exercise.function, "it")
    except ValueError as error:
        return [Answer(where, refused=str(error))]
    several = len(found) > 1
    return [_answer(f"{where}, cell {each.cell}" if several else where, each) for each in found]


def _answer(where: str, version: submission.Version) -> Answer:
    size = len(version.source)
    if size > MAX_ANSWER_KB << 10:
        return Answer(where, refused=f"the answer's cell has {size >> 10:,} kB; it may have {MAX_ANSWER_KB}")
    if not version.source.strip():
        return Answer(where, refused="the answer's cell is empty")
    return Answer(where, version.source, hole=version.hole)
