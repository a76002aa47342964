"""Who handed in what: finds, in a folder of submissions, each student's answers to each exercise.

An exercise is known by its notebook's name, wherever that stands in the file's name, and where no name says it, by the
function that a cell defines. Nothing is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from course_kernels.course import submission, unpack
from course_kernels.course.manifest import Exercise
from course_kernels.course.unpack import File

MAX_VERSIONS = 4
MAX_ANSWER_KB = 100
_OTHER_ARCHIVES = (".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
# Canvas: name_userid_submissionid_file or name_LATE_userid_submissionid_file; the second number changes with each file.
_CANVAS = re.compile(r"([^\W_]+)_(?:LATE_)?(\d{3,})_\d{3,}_.+")
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
        answers: by exercise name, the versions that are graded: properly named ones first, then the least deeply
            buried; never two of the same text.
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
    whose: dict[str, list[Path]] = {}
    strangers = []
    ignored = {path.resolve() for path in ignore}
    for name in sorted(os.listdir(folder)):
        path = folder / name
        link = path.is_symlink()
        if unpack.passed_over(name) or (not link and path.resolve() in ignored):
            continue
        if path.is_dir() and not link:
            whose.setdefault(name, []).append(path)
        elif link or name.casefold().endswith((".zip", ".ipynb", *_OTHER_ARCHIVES)):
            whose.setdefault(_student(path, exercises), []).append(path)
        else:
            strangers.append(name)
    # One after the other: what one handed in may fill a good part of the memory.
    found = [sort_out(who, [file for path in whose[who] for file in _files(path)], exercises) for who in sorted(whose)]
    return found, strangers


def _files(path: Path) -> list[File]:
    """What is in an entry of the folder of submissions."""
    name = path.name.casefold()
    if path.is_symlink():
        return [File(path.name, refused=unpack.LINK)]
    if path.is_dir():
        return unpack.folder(path)
    if name.endswith(".zip"):
        return unpack.archive(path)
    if name.endswith(".ipynb"):
        return [unpack.notebook(path, path.name)]
    return [File(path.name, refused="is no zip file: unpack it")]


def _student(path: Path, exercises: Sequence[Exercise]) -> str:
    """Whose a file is: its name without the exercise's. Files that carry no other name are one student's."""
    stem = re.sub(r"(\.tar)?\.\w+$", "", path.name)
    if canvas := _CANVAS.fullmatch(stem):
        return f"{canvas[1]}_{canvas[2]}"
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
        files: the notebooks that they handed in.
        exercises: that are graded.
    """
    found = Submission(student)
    named: dict[str, list[tuple[tuple, Answer]]] = {}
    defined: dict[str, list[tuple[tuple, Answer]]] = {}
    for file in files:
        exercise, _ = _named(PurePosixPath(file.where).stem, exercises)
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
    return found


def _ranked(file: File, answers: list[Answer], exercise: Exercise) -> list[tuple[tuple, Answer]]:
    """Answers of a notebook with what they are sorted by.

    Readable ones first, holes last; of each notebook the last cell before all others; then those named as they were
    handed out, then the least deeply buried.
    """
    path = PurePosixPath(file.where)
    by_file = (path.stem != exercise.name, len(path.parts), file.where)
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
