"""The work of one student: files, notebooks and cells, sorted by exercise. No cell is executed.

Strangers wrote these files, and every parser has inputs that take endless time or all memory. So this runs in its own
process (see `reader`), and refuses long text before parsing it.
"""

from __future__ import annotations

import ast
import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gemm_course.exercises.manifest import Exercise
from gemm_course.grading import hand_in_files
from gemm_course.grading.class_folder import CANVAS, MOODLE, Answer, Submission, match_name, platform_student
from gemm_course.grading.hand_in_files import File
from gemm_course.notebook import cells

MAX_VERSIONS = 4
MAX_ANSWER_KB = cells.MAX_PARSED >> 10
NO_NOTEBOOK = "is not a notebook: hand in the .ipynb file"
_LAYOUT = ("my_course", "exercises")  # folders of the course, which say nothing about the student

_Ranked = list[tuple[tuple, Answer]]  # answers, each with its sort key


class _Notebook(NamedTuple):
    """A file that was handed in, and its answers."""

    file: File
    refused: str
    named: Exercise | None  # by its name
    answers: dict[str, _Ranked]  # by exercise name


def read(student: str, paths: Sequence[Path], exercises: Sequence[Exercise], one_student: bool = False) -> Submission:
    """Sort the files in a student's entries of the folder of submissions by exercise.

    A folder or archive that holds several hand-ins side by side (see `_hand_ins`) is refused, unless the grader says
    that it is `one_student`'s. Versions are ranked in each entry: files beside a folder never displace the folder's.
    """
    submission, refused = Submission(student), 0
    answers: dict[str, _Ranked] = {}
    for path in paths:
        notebooks = [_open(file, exercises) for file in _files(path)]
        if not one_student and (names := _hand_ins(notebooks, path, exercises)):
            refused += 1
            notebooks = [_open(File(path.name, refused=_several(names, student, path)), ())]
        loose = not path.is_dir()
        for name, ranked in _by_exercise(notebooks).items():
            answers.setdefault(name, []).extend(((*key[:2], loose, *key[2:]), answer) for key, answer in ranked)
        unknown = [each for each in notebooks if each.refused and not each.named and not each.file.name_only]
        where = [(each.file.where, each.refused) for each in unknown]
        submission.notes += [reason if place == student else f"{place}: {reason}" for place, reason in where]
        if notebooks and not (answers or submission.notes):
            names = ", ".join(each.file.where for each in notebooks[:5]) + (", …" if len(notebooks) > 5 else "")
            count = f"{len(notebooks)} files" if len(notebooks) > 1 else "1 file"
            submission.notes.append(f"no notebook of an exercise among {count}: {names}")
    for name, ranked in answers.items():
        texts: dict[str, Answer] = {}
        for _, answer in sorted(ranked, key=lambda pair: pair[0]):
            texts.setdefault(answer.source or f"refused: {answer.where}", answer)
        submission.answers[name] = list(texts.values())[:MAX_VERSIONS]
        if len(texts) > MAX_VERSIONS:
            submission.skipped[name] = len(texts) - MAX_VERSIONS
    submission.one_level_too_high = refused == len(paths)
    return submission


def _files(path: Path) -> list[File]:
    if path.is_symlink():
        return [File(path.name, refused=hand_in_files.LINK)]
    return hand_in_files.read_folder(path) if path.is_dir() else hand_in_files.read_file(path, path.name)


def _open(file: File, exercises: Sequence[Exercise]) -> _Notebook:
    named, _ = match_name(PurePosixPath(file.where).stem, exercises)
    code, refused = [], file.refused
    if file.name_only:
        refused = NO_NOTEBOOK
    elif not refused:
        try:
            code = cells.code_cells(file.data, "it")
        except ValueError as error:
            refused = str(error)
    file = file._replace(data=b"")
    if named and refused:
        return _Notebook(
            file, refused, named, {named.name: _ranked(file, [Answer(file.where, refused=refused)], named)}
        )
    found = [e for e in exercises if any(cells.defines(cell.source, e.function) for cell in code)]
    answered = [named] if named else found
    return _Notebook(file, refused, named, {e.name: _ranked(file, _answers(file.where, code, e), e) for e in answered})


def _by_exercise(notebooks: Sequence[_Notebook]) -> dict[str, _Ranked]:
    """The answers in an entry: from notebooks with an exercise's name, else from cells that define its function.

    A file of another kind with an exercise's name counts only if both are missing.
    """
    kinds: list[dict[str, _Ranked]] = [{}, {}, {}]
    for each in notebooks:
        kind = kinds[0 if each.file.name_only else 2 if each.named else 1]
        for name, ranked in each.answers.items():
            kind.setdefault(name, []).extend(ranked)
    other_kind, defined, named = kinds
    return {name: ranked[-1:] for name, ranked in other_kind.items()} | defined | named


def _hand_ins(notebooks: Sequence[_Notebook], path: Path, exercises: Sequence[Exercise]) -> list[str]:
    """The names of hand-ins if an entry holds several, as a folder one level too high does; else an empty list.

    Answers to one exercise in folders or archives side by side are several hand-ins. Files side by side and folders
    inside each other hold versions. Two students that a learning platform names are always several.
    """
    layout = {*_LAYOUT, *(each.name for each in exercises)}
    places: dict[str, set[tuple[str, ...]]] = {}
    platforms = set()
    for each in notebooks:
        # An archive's own name says nothing about its contents.
        parts = PurePosixPath(each.file.where).parts[0 if path.is_dir() else 1 :]
        folder = tuple(part for part in parts[:-1] if part not in layout)
        if not each.file.name_only:
            platforms.update(filter(None, (platform_student(part, CANVAS, MOODLE) for part in parts)))
            for name, ranked in each.answers.items():
                if any(not (answer.hole or answer.refused) for _, answer in ranked):
                    places.setdefault(name, set()).add(folder)
    if len(platforms) > 1:
        return sorted(platforms)
    names: set[str] = set()
    for folders in places.values():
        deepest = max(folders, key=len)
        if beside := [folder for folder in folders if folder != deepest[: len(folder)]]:
            steps = zip(deepest, *beside)  # from the top; the first level that differs has their names
            names.update(next(step for step in map(set, steps) if len(step) > 1))
    return sorted(names)


def _several(names: list[str], student: str, path: Path) -> str:
    shown = ", ".join(name[:40] for name in names[:3]) + (", …" if len(names) > 3 else "")
    advice = "grade that folder by itself" if path.is_dir() else "unpack it"
    overrule = f"if they are versions of one student's, add --one-student {shlex.quote(student)}"
    return f"holds several hand-ins ({shown}): {advice}; {overrule}"


def _ranked(file: File, answers: list[Answer], exercise: Exercise) -> _Ranked:
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
    return Answer(where, version.source, hole=version.hole, shape=_shape(version.source))


def _shape(source: str) -> str:
    """A digest of code without comments, docstrings, layout, and names of its variables, parameters and functions.

    Names of classes and methods, aliases of imports, and names after `as` in an `except` or a pattern stay. "" if it is
    no code.
    """
    try:
        tree = ast.parse(source)
        nodes = list(ast.walk(tree))
        own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        methods = {id(each) for node in nodes if isinstance(node, ast.ClassDef) for each in node.body}
        functions = {node for node in nodes if isinstance(node, ast.FunctionDef) and id(node) not in methods}
        own |= {node.name for node in functions}
        names: dict[str, str] = {}
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.Module)) and ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
            for field in ("id", "arg", "name"):
                name = getattr(node, field, None)
                if name in own and (field != "name" or node in functions):
                    setattr(node, field, names.setdefault(name, f"name {len(names)}"))
        return hashlib.sha256(ast.dump(tree).encode(errors="surrogatepass")).hexdigest()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
