"""Each student's answers to each exercise, found in a folder of submissions. Nothing is executed.

The name of an exercise's notebook, anywhere in a file's name, says which exercise a file answers. If no name does, the
functions that its cells define say it. A notebook's name from before the exercises were renumbered counts as well.
"""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import Exercise
from gemm_course.grading import archives
from gemm_course.grading.archives import File
from gemm_course.notebook_files import cells

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
    """One version of an answer."""

    where: str  # its notebook's path in what was handed in, and the cell where several may be the answer
    source: str = ""  # of the cell that holds it; empty where it was refused
    refused: str = ""  # why; empty otherwise
    hole: bool = False  # whether something in it still has to be written


@dataclass
class Submission:
    """What one student handed in."""

    student: str  # name of the folder or file
    # By exercise name, the versions that are graded, in the order of `_ranked`, never two of the same text. A file of
    # another kind with an exercise's name is one refused answer, where there is no notebook.
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)  # by exercise name, how many versions there were beyond those
    notes: list[str] = field(default_factory=list)  # unreadable files of no known exercise, and why


def discover(
    folder: Path, exercises: Sequence[Exercise], ignore: Collection[Path] = ()
) -> tuple[list[Submission], list[str]]:
    """Everybody's answers, sorted by student, and the names of unrecognized files.

    The folder holds a folder, a zip file or notebooks for each student, and perhaps entries to ignore. Raises OSError
    if it cannot be read.
    """
    if folder.is_file() and archives.file_kind(folder.name) in (archives.ZIP, archives.ARCHIVE):
        raise NotADirectoryError(errno.ENOTDIR, "unpack it", str(folder))
    entries: dict[str, list[Path]] = {}
    unrecognized = []
    ignored = {path.resolve() for path in ignore}
    for name in sorted(os.listdir(folder)):
        path = folder / name
        link = path.is_symlink()
        if archives.is_ignored(name) or (not link and path.resolve() in ignored):
            continue
        if path.is_dir() and not link:
            entries.setdefault(_platform_student(_as_text(name), _MOODLE) or _as_text(name), []).append(path)
        elif link or archives.file_kind(name) != archives.OTHER:
            entries.setdefault(_student(path, exercises), []).append(path)
        else:
            unrecognized.append(name)
    # One student after the other: the files of one may take much memory.
    found = [
        _read_submission(student, [file for path in paths for file in _files(path)], exercises)
        for student, paths in sorted(entries.items())
    ]
    return found, unrecognized


def _as_text(name: str) -> str:
    r"""A file's name as text: the same for the same letters, however composed; bytes that are not UTF-8 as \xNN."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))


def _files(path: Path) -> list[File]:
    """The files in an entry of the folder of submissions."""
    if path.is_symlink():
        return [File(path.name, refused=archives.LINK)]
    folder = path.is_dir()
    files = archives.read_folder(path) if folder else archives.read_file(path, path.name)
    # An archive's own name says nothing about its contents.
    inside = [PurePosixPath(file.where).parts[0 if folder else 1 :] for file in files if not file.name_only]
    people = sorted({name for parts in inside for part in parts if (name := _platform_student(part, _CANVAS, _MOODLE))})
    if len(people) > 1:
        advice = "grade that folder by itself" if folder else "unpack it"
        names = ", ".join(people[:3]) + (", …" if len(people) > 3 else "")
        return [File(path.name, refused=f"holds the work of several people ({names}): {advice}")]
    return files


def _platform_student(name: str, *platforms: re.Pattern) -> str:
    """The student whom a learning platform names in a file's or folder's name; empty if none does."""
    return next((f"{found[1]}_{found[2]}" for each in platforms if (found := each.fullmatch(name))), "")


def _student(path: Path, exercises: Sequence[Exercise]) -> str:
    """A file's student: its name without the exercise's. All files with no other name are one student's."""
    stem = re.sub(r"(\.tar|\.ipynb)?\.\w+$", "", _as_text(path.name))
    if student := _platform_student(stem, _MOODLE, _CANVAS):
        return student
    _, found = _match_name(stem, exercises)
    if found is None:
        return stem
    parts = (_COPY.sub("", stem[: found.start()]), _COPY.sub("", stem[found.end() :]))
    return next(filter(None, (part.strip(" _-.") for part in parts)), path.resolve().parent.name or "submission")


def _match_name(stem: str, exercises: Sequence[Exercise]) -> tuple[Exercise | None, re.Match | None]:
    """The exercise whose name, now or before the renumbering, is in a file's name, and the place of it there."""
    flat = re.sub(r"[\s.-]", "_", stem)
    names = {each: "|".join(filter(None, (each.name, manifest.former_name(each)))) for each in exercises}
    found = [(each, re.search(name, flat, re.IGNORECASE | re.ASCII)) for each, name in names.items()]
    return max((pair for pair in found if pair[1]), key=lambda pair: len(pair[0].name), default=(None, None))


def _read_submission(student: str, files: Sequence[File], exercises: Sequence[Exercise]) -> Submission:
    """Sort one student's files by exercise."""
    submission = Submission(student)
    named: dict[str, list[tuple[tuple, Answer]]] = {}
    defined: dict[str, list[tuple[tuple, Answer]]] = {}
    other_kind: dict[str, list[tuple[tuple, Answer]]] = {}
    for file in files:
        exercise, _ = _match_name(PurePosixPath(file.where).stem, exercises)
        if file.name_only:
            if exercise is not None:
                other_kind.setdefault(exercise.name, [((), Answer(file.where, refused=NO_NOTEBOOK))])
            continue
        code, refused = [], file.refused
        if not refused:
            try:
                code = cells.code_cells(file.data, "it")
            except ValueError as error:
                refused = str(error)
        if exercise is not None:
            answers = [Answer(file.where, refused=refused)] if refused else _answers(file.where, code, exercise)
            named.setdefault(exercise.name, []).extend(_ranked(file, answers, exercise))
            continue
        if refused:
            submission.notes.append(f"{file.where}: {refused}")
        for each in exercises:
            if any(cells.defines(cell.source, each.function) for cell in code):
                defined.setdefault(each.name, []).extend(_ranked(file, _answers(file.where, code, each), each))
    for name, versions in (other_kind | defined | named).items():
        texts: dict[str, Answer] = {}
        for _, answer in sorted(versions, key=lambda pair: pair[0]):
            texts.setdefault(answer.source or f"refused: {answer.where}", answer)
        submission.answers[name] = list(texts.values())[:MAX_VERSIONS]
        if len(texts) > MAX_VERSIONS:
            submission.skipped[name] = len(texts) - MAX_VERSIONS
    if files and not (submission.answers or submission.notes):
        names = ", ".join(file.where for file in files[:5]) + (", …" if len(files) > 5 else "")
        count = f"{len(files)} files" if len(files) > 1 else "1 file"
        submission.notes.append(f"no notebook of an exercise among {count}: {names}")
    return submission


def _ranked(file: File, answers: list[Answer], exercise: Exercise) -> list[tuple[tuple, Answer]]:
    """A notebook's answers, each with its sort key.

    Readable answers come first, those with holes last. The last cell of each notebook comes before its other cells.
    Then come notebooks with the name that was handed out, the least deeply nested, the copies with the highest
    numbers, and the latest.
    """
    path = PurePosixPath(file.where)
    _, name = _match_name(path.stem, [exercise])
    numbers = re.findall(r"\d{1,9}", path.stem[name.end() :] if name else path.stem)
    copy = int(numbers[-1]) if numbers else 0
    by_file = (path.stem != exercise.name, len(path.parts), -copy, -file.modified, file.where)
    return [((bool(answer.refused), answer.hole, i, *by_file), answer) for i, answer in enumerate(answers)]


def _answers(where: str, code: list[cells.Cell], exercise: Exercise) -> list[Answer]:
    """A notebook's answers to an exercise, at least one."""
    try:
        versions = cells.versions(code, exercise.function, "it")
    except ValueError as error:
        return [Answer(where, refused=str(error))]
    several = len(versions) > 1
    return [_answer(f"{where}, cell {each.cell}" if several else where, each) for each in versions]


def _answer(where: str, version: cells.Version) -> Answer:
    size = len(version.source)
    if size > MAX_ANSWER_KB << 10:
        return Answer(where, refused=f"the answer's cell has {size >> 10:,} kB; it may have {MAX_ANSWER_KB}")
    if not version.source.strip():
        return Answer(where, refused="the answer's cell is empty")
    return Answer(where, version.source, hole=version.hole)
