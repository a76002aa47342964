"""The learner's working copies of lessons and exercises: made in `my_course/`, brought up to date, never overwritten.

JupyterLab stores outputs in a notebook that it opens, so the repository's own notebooks stay out of its sight. A copy
counts as changed if its cells have another text than the version that it was made from. Outputs do not count, nor do
the empty cells that JupyterLab appends. A small record in the folder keeps the version that each copy was made from.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

from course_kernels.files import write_atomically
from gemm_course.exercises import manifest
from gemm_course.exercises.manifest import Exercise
from gemm_course.notebook import cells, locations, stubs

RECORD = ".made_from.json"
# Files that lessons and README link to, or read. The site's pages only: its build shows every solution.
LINKED = ("benchmarks", "src", "site/*.md", "README.md", "CHANGELOG.md", "LICENSE")

Cells = list[tuple[str, str]]  # type and source of each


def update(root: Path) -> list[str]:
    """Make the working copies of a checkout, or bring them up to date.

    Args:
        root: the checkout's root; the copies are in its folder `locations.COPIES`.

    Returns:
        Messages for the learner, a line each: new and replaced files, and the places of their own versions.

    Raises:
        OSError: the folder cannot be written.

    Notes:
        A new version of a file replaces a copy that the learner did not change. A changed lesson is kept beside the new
        one, as `NN_name.yours.ipynb`. An exercise is replaced by the new one with the learner's answer in it. If its
        task has changed, the learner's stays, and the new one is put beside it, as `NN_name.new.ipynb`.
    """
    place = root / locations.COPIES
    is_new = not place.exists()
    for folder in ("notebooks", "exercises"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    _link(root, place)
    before, after, messages, replaced = _read_record(place), {}, [], []
    for name, shipped, exercise in _shipped(root):
        target, made_from = place / name, before.get(name, {})
        after[name] = facts = _facts(shipped, exercise)
        found = cells_of(target)
        if not os.path.lexists(target):
            _write((is_new and exercise and _answered(root / name, exercise)) or shipped, target)
        elif found is not None and fingerprint(found) in (facts["cells"], made_from.get("cells")):
            if fingerprint(found) != facts["cells"]:  # not changed, and there is a new version
                _write(shipped, target)
                replaced.append(name)
        elif made_from.get("cells") == facts["cells"]:
            after[name] = made_from  # changed, and nothing is new
        elif exercise is None:
            yours = _free_name(target, "yours")
            target.rename(yours)
            _write(shipped, target)
            messages.append(f"{name} has a new version; yours, with your changes, is {yours.name} beside it")
        else:
            line, is_theirs = _update_exercise(target, shipped, exercise, made_from, facts)
            messages.append(line)
            if is_theirs:
                after[name] = {**made_from, "cells": facts["cells"]}
    messages += _remove_former(place, before, set(after))
    if after != before:
        write_atomically(place / RECORD, json.dumps(after, indent=1, sort_keys=True) + "\n")
    if is_new:
        return [f"Your own copies of the lessons and exercises are in {locations.COPIES}/: change them as you like."]
    return ([f"New versions of files that you had not changed: {', '.join(replaced)}"] if replaced else []) + messages


def fingerprint(found: Iterable[tuple[str, str]]) -> str:
    """A digest of cells' types and sources; cells without text do not count."""
    kept = [[kind, source] for kind, source in found if source.strip()]
    return _digest(json.dumps(kept))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _update_exercise(target: Path, shipped: dict, exercise: Exercise, made_from: dict, facts: dict) -> tuple[str, bool]:
    """Carry an answer into the new version of its exercise; returns a message, and whether the old copy stays."""
    name = f"{target.parent.name}/{target.name}"
    try:
        code = cells.code_cells(target.read_bytes(), target.name)
        number = cells.versions(code, exercise.function, target.name)[0].cell
    except ValueError:
        number = 0
    if not number or made_from.get("task") != facts["task"]:
        new = _free_name(target, "new")
        _write(shipped, new)
        line = (
            f"{name} has a new version, which your answer may not fit: yours stays, the new one is {new.name} beside it"
        )
        return line, True
    answer = next(each.source for each in code if each.number == number)
    others = [each for at, each in enumerate(cells_of(target) or [], 1) if at != number]
    is_all = fingerprint(others) == made_from["others"]
    yours = _free_name(target, "yours")
    if not is_all:
        target.rename(yours)
    if _digest(answer) != made_from["answer"]:
        shipped["cells"][_answer_at(shipped)]["source"] = answer.splitlines(keepends=True)
    _write(shipped, target)
    line = f"{name} has a new version, with your answer in it"
    return line if is_all else f"{line}; your other changes are in {yours.name} beside it", False


def _facts(shipped: dict | str, exercise: Exercise | None) -> dict[str, str]:
    """A version's entry in the record: digests of its cells and, for an exercise, of its parts."""
    found = sources(shipped)
    if exercise is None:
        return {"cells": fingerprint(found)}
    at = _answer_at(shipped)
    others = fingerprint(found[:at] + found[at + 1 :])
    answer = found[at][1]
    return {"cells": fingerprint(found), "answer": _digest(answer), "task": _task(answer), "others": others}


def _task(source: str) -> str:
    """A digest of the code around a hole; comments, docstrings and the message of the hole do not count."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            node.exc = None
        elif isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return _digest(ast.dump(tree))


def _answer_at(notebook: dict) -> int:
    """The index of the answer's cell among the cells of an exercise as it is handed out."""
    ids = [each["metadata"].get("nbgrader", {}).get("grade_id") for each in notebook["cells"]]
    return ids.index(cells.SOLUTION_ID)


def _shipped(root: Path) -> Iterator[tuple[str, dict | str, Exercise | None]]:
    """The course's own versions: the name of each in the folder, its content, and its exercise."""
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        yield f"notebooks/{path.name}", _completed(stubs.read(path)), None
    for path in sorted((root / "notebooks").glob("*.md")):
        yield f"notebooks/{path.name}", path.read_text(encoding="utf-8"), None
    for exercise in manifest.exercises():
        solution, executed = (root / each / f"{exercise.name}.ipynb" for each in ("solutions", "exercises"))
        handed_out = stubs.stub(stubs.read(solution), exercise)
        with contextlib.suppress(OSError, ValueError):  # it has outputs; and in a learner's hands it may have an answer
            if sources(found := stubs.read(executed)) == sources(handed_out):
                handed_out = found
        yield f"exercises/{executed.name}", _completed(handed_out), exercise


def _answered(path: Path, exercise: Exercise) -> dict | None:
    """The repository's own notebook of an exercise if a learner answered it there, before there were copies."""
    try:
        found = cells.versions(cells.code_cells(path.read_bytes(), path.name), exercise.function, path.name)
    except (OSError, ValueError):
        return None
    return None if found[0].hole else stubs.read(path)


def _completed(notebook: dict) -> dict:
    """A notebook with the language metadata that JupyterLab would add; the addition would mark it as changed."""
    language = {
        "codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "mimetype": "text/x-python",
        "name": "python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3",
        "version": platform.python_version(),
    }  # fmt: skip
    return {**notebook, "metadata": {**notebook["metadata"], "language_info": language}}


def sources(content: dict | str) -> Cells:
    """The cells of a notebook, or of a text, which counts as one."""
    if isinstance(content, str):
        return [("markdown", content)]
    return [(each["cell_type"], "".join(each["source"])) for each in content["cells"]]


def cells_of(path: Path) -> Cells | None:
    """The cells of a copy, or None if it does not exist or is no notebook any more."""
    try:
        text = path.read_text(encoding="utf-8")
        return sources(json.loads(text) if path.suffix == ".ipynb" else text)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _write(content: dict | str, path: Path) -> None:
    if isinstance(content, str):
        write_atomically(path, content)
    else:
        stubs.write(content, path)


def _free_name(path: Path, word: str) -> Path:
    """A name beside a file that is still free."""
    number, found = 1, path.with_name(f"{path.stem}.{word}{path.suffix}")
    while os.path.lexists(found):
        number += 1
        found = path.with_name(f"{path.stem}.{word}-{number}{path.suffix}")
    return found


def _remove_former(place: Path, before: dict[str, dict], current: set[str]) -> list[str]:
    """Remove unchanged copies of files that the course no longer has; changed copies stay, and a line names each."""
    messages = []
    for name in sorted(before.keys() - current):
        found = cells_of(place / name)
        if found is not None and fingerprint(found) == before[name].get("cells"):
            (place / name).unlink()
        elif (place / name).exists():
            messages.append(f"{name} is no longer part of the course; yours stays")
    return messages


def _link(root: Path, place: Path) -> None:
    """Make links at the relative places that lessons link to. Skipped on a file system without links."""
    for picture in (root / "docs").glob("*.png"):  # README's: Jupyter Server refuses to show one through a link
        copy = place / "docs" / picture.name
        copy.parent.mkdir(exist_ok=True)
        if not copy.exists() or copy.read_bytes() != picture.read_bytes():
            write_atomically(copy, picture.read_bytes())
    for path in (path for pattern in LINKED for path in root.glob(pattern)):
        link = place / path.relative_to(root)
        if not os.path.lexists(link):
            with contextlib.suppress(OSError):
                link.parent.mkdir(exist_ok=True)
                os.symlink(os.path.relpath(path, link.parent), link)


def _read_record(place: Path) -> dict[str, dict]:
    """The version from which each copy was made. Without a record, every copy that differs counts as changed."""
    try:
        found = json.loads((place / RECORD).read_text(encoding="utf-8"))
        return {str(name): dict(each) for name, each in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
