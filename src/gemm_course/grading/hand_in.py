"""What one student handed in: files, notebooks and cells, sorted by exercise. Nothing is executed.

All of it was written by somebody else, and every parser has been made to take for ever or all memory by somebody. So
this runs in a process of its own, see `reader`, and what is long is refused before it is parsed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gemm_course.exercises.manifest import Exercise
from gemm_course.grading import archives
from gemm_course.grading.archives import File
from gemm_course.grading.people import people_in
from gemm_course.grading.submissions import CANVAS, MOODLE, Answer, Submission, match_name, platform_student
from gemm_course.notebook import cells

MAX_VERSIONS = 4
MAX_ANSWER_KB = cells.MAX_PARSED >> 10
NO_NOTEBOOK = "is not a notebook: hand in the .ipynb file"


class _Notebook(NamedTuple):
    """A file that was handed in, its cells if it can be read, and the exercises that it answers."""

    file: File
    code: list[cells.Cell]
    refused: str
    named: Exercise | None  # by its name
    defines: list[Exercise]  # by its cells, if its name says nothing


def read(student: str, paths: Sequence[Path], exercises: Sequence[Exercise], one_student: bool = False) -> Submission:
    """Sort the files in somebody's entries of the folder of submissions by exercise.

    What looks like several people's work, see `people`, is refused unless the grader says that it is `one_student`'s.
    """
    found, classes = [], 0
    for path in paths:
        there = [_open(file, exercises) for file in _files(path)]
        people = [] if one_student else _people(student, there, path, exercises)
        if people:
            classes += 1
            there = [_open(File(path.name, refused=_several(people, student, path)), ())]
        found += there
    submission = _sorted(student, found, exercises)
    submission.one_level_too_high = classes == len(paths)
    return submission


def _files(path: Path) -> list[File]:
    if path.is_symlink():
        return [File(path.name, refused=archives.LINK)]
    return archives.read_folder(path) if path.is_dir() else archives.read_file(path, path.name)


def _open(file: File, exercises: Sequence[Exercise]) -> _Notebook:
    named, _ = match_name(PurePosixPath(file.where).stem, exercises)
    code, refused = [], file.refused
    if not (refused or file.name_only):
        try:
            code = cells.code_cells(file.data, "it")
        except ValueError as error:
            refused = str(error)
    defines = [] if named else [e for e in exercises if any(cells.defines(cell.source, e.function) for cell in code)]
    return _Notebook(file._replace(data=b""), code if named or defines else [], refused, named, defines)


def _people(student: str, found: Sequence[_Notebook], path: Path, exercises: Sequence[Exercise]) -> list[str]:
    """The people whose work seems to be in an entry; none if it is one student's."""
    places: dict[str, list[str]] = {}
    platforms = set()
    for each in found:
        if each.file.name_only:
            continue
        for exercise in [each.named] if each.named else each.defines:
            places.setdefault(exercise.name, []).append(each.file.where)
        # An archive's own name says nothing about its contents.
        parts = PurePosixPath(each.file.where).parts[0 if path.is_dir() else 1 :]
        platforms.update(filter(None, (platform_student(part, CANVAS, MOODLE) for part in parts)))
    return sorted(platforms) if len(platforms) > 1 else people_in(places, student, exercises)


def _several(people: list[str], student: str, path: Path) -> str:
    names = ", ".join(name[:40] for name in people[:3]) + (", …" if len(people) > 3 else "")
    advice = "grade that folder by itself" if path.is_dir() else "unpack it"
    overrule = f"if it is one student's, add --one-student {shlex.quote(student)}"
    return f"has the work of several people ({names}): {advice}; {overrule}"


def _sorted(student: str, found: Sequence[_Notebook], exercises: Sequence[Exercise]) -> Submission:
    submission = Submission(student)
    named: dict[str, list[tuple[tuple, Answer]]] = {}
    defined: dict[str, list[tuple[tuple, Answer]]] = {}
    other_kind: dict[str, list[tuple[tuple, Answer]]] = {}
    for file, code, refused, exercise, defines in found:
        if file.name_only:
            if exercise is not None:
                other_kind.setdefault(exercise.name, [((), Answer(file.where, refused=NO_NOTEBOOK))])
            continue
        if exercise is not None:
            answers = [Answer(file.where, refused=refused)] if refused else _answers(file.where, code, exercise)
            named.setdefault(exercise.name, []).extend(_ranked(file, answers, exercise))
            continue
        if refused:
            submission.notes.append(refused if file.where == student else f"{file.where}: {refused}")
        for each in defines:
            defined.setdefault(each.name, []).extend(_ranked(file, _answers(file.where, code, each), each))
    for name, versions in (other_kind | defined | named).items():
        texts: dict[str, Answer] = {}
        for _, answer in sorted(versions, key=lambda pair: pair[0]):
            texts.setdefault(answer.source or f"refused: {answer.where}", answer)
        submission.answers[name] = list(texts.values())[:MAX_VERSIONS]
        if len(texts) > MAX_VERSIONS:
            submission.skipped[name] = len(texts) - MAX_VERSIONS
    if found and not (submission.answers or submission.notes):
        names = ", ".join(each.file.where for each in found[:5]) + (", …" if len(found) > 5 else "")
        count = f"{len(found)} files" if len(found) > 1 else "1 file"
        submission.notes.append(f"no notebook of an exercise among {count}: {names}")
    return submission


def _ranked(file: File, answers: list[Answer], exercise: Exercise) -> list[tuple[tuple, Answer]]:
    """A notebook's answers, each with its sort key.

    Readable answers come first, those with holes last. The last cell of each notebook comes before its other cells.
    Then come notebooks with the name that was handed out, the least deeply nested, the copies with the highest
    numbers, and the latest.
    """
    path = PurePosixPath(file.where)
    _, name = match_name(path.stem, [exercise])
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
        return Answer(where, refused=f"the answer's cell has {size >> 10:,} kB; {MAX_ANSWER_KB} are allowed")
    if not version.source.strip():
        return Answer(where, refused="the answer's cell is empty")
    return Answer(where, version.source, hole=version.hole)
