"""What one student handed in: files, notebooks and cells, sorted by exercise. Nothing is executed.

All of it was written by somebody else, and every parser has been made to take for ever or all memory by somebody. So
this runs in a process of its own, see `reader`, and what is long is refused before it is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from gemm_course.exercises.manifest import Exercise
from gemm_course.grading import archives
from gemm_course.grading.archives import File
from gemm_course.grading.submissions import CANVAS, MOODLE, Answer, Submission, match_name, platform_student
from gemm_course.notebook_files import cells

MAX_VERSIONS = 4
MAX_ANSWER_KB = cells.MAX_PARSED >> 10
NO_NOTEBOOK = "is not a notebook: hand in the .ipynb file"


def read(student: str, paths: Sequence[Path], exercises: Sequence[Exercise], alone: bool = False) -> Submission:
    """Sort the files in somebody's entries of the folder of submissions by exercise.

    `alone`: whether nobody else is in that folder. Then the same notebooks in several folders are several people's.
    """
    return _sorted(student, [file for path in paths for file in _files(path, exercises if alone else ())], exercises)


def _files(path: Path, exercises: Collection[Exercise]) -> list[File]:
    """The files in an entry of the folder of submissions; of several people's work, of known exercises, none."""
    if path.is_symlink():
        return [File(path.name, refused=archives.LINK)]
    folder = path.is_dir()
    files = archives.read_folder(path) if folder else archives.read_file(path, path.name)
    # An archive's own name says nothing about its contents.
    inside = [PurePosixPath(file.where).parts[0 if folder else 1 :] for file in files if not file.name_only]
    people = sorted({name for parts in inside for part in parts if (name := platform_student(part, CANVAS, MOODLE))})
    if len(people) < 2 and folder and exercises:
        people = _likely_people(files, exercises)
    if len(people) > 1:
        advice = "grade that folder by itself" if folder else "unpack it"
        names = ", ".join(people[:3]) + (", …" if len(people) > 3 else "")
        return [File(path.name, refused=f"has the work of several people ({names}): {advice}")]
    return files


def _likely_people(files: Sequence[File], exercises: Collection[Exercise]) -> list[str]:
    """Folders that hold the same exercise's notebook in the same place, as everybody's do one level too high."""
    folders: dict[tuple, set[str]] = {}
    for file in files:
        top, *inside = PurePosixPath(file.where).parts
        exercise, _ = match_name(PurePosixPath(file.where).stem, exercises)
        if inside and exercise is not None and not file.name_only:
            folders.setdefault((*inside[:-1], exercise.name), set()).add(top)
    found = max(folders.values(), key=len, default=set())
    return [] if "exercises" in found else sorted(found)  # a copy of the repository, with attempts beside it


def _sorted(student: str, files: Sequence[File], exercises: Sequence[Exercise]) -> Submission:
    submission = Submission(student)
    named: dict[str, list[tuple[tuple, Answer]]] = {}
    defined: dict[str, list[tuple[tuple, Answer]]] = {}
    other_kind: dict[str, list[tuple[tuple, Answer]]] = {}
    for file in files:
        exercise, _ = match_name(PurePosixPath(file.where).stem, exercises)
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
