"""Digests of code: what a record, a table of configurations or a kept grade depends on, as 16 digits to compare."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["ROOT", "digest", "files"]

ROOT = Path(__file__).resolve().parents[1]  # the folder that holds course_kernels and gemm_course


def files(patterns: Sequence[str]) -> list[Path]:
    """The files that match glob patterns, sorted, each once.

    Args:
        patterns: relative to the folder that holds both packages, as "course_kernels/packed/**/*.py".

    Raises:
        ValueError: a pattern matches no file.
    """
    found: set[Path] = set()
    for pattern in patterns:
        matches = {path for path in ROOT.glob(pattern) if path.is_file() and path.suffix != ".pyc"}
        if not matches:
            raise ValueError(f"the pattern {pattern!r} matches no file in {ROOT}")
        found |= matches
    return sorted(found)


def digest(patterns: Sequence[str]) -> str:
    """SHA-256 over the code of the files that match, shortened to 16 digits.

    Comments, docstrings, formatting and imports do not count, and neither does which of the files holds a definition,
    nor in what order. Files that are not Python count byte by byte, with their names. The digest is the same in every
    version of Python. ``patterns`` and the error for a pattern without a file are those of ``files``.
    """
    parts: list[bytes] = []
    for path in files(patterns):
        content = path.read_bytes()
        parts += _statements(content) if path.suffix == ".py" else [path.name.encode() + b"\0" + content]
    # Each part is hashed by itself, so that no two sequences of parts are the same bytes.
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(part).digest() for part in parts))).hexdigest()[:16]


@functools.lru_cache(maxsize=1024)
def _statements(source: bytes) -> tuple[bytes, ...]:
    """The top-level statements of a Python file that count, as bytes."""
    return tuple(repr(_plain(node)).encode() for node in _counted(ast.parse(source)))


def _counted(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a body without imports, ``__all__`` and the docstring."""
    documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    skip = documented and ast.get_docstring(node, clean=False) is not None
    for statement in node.body[skip:]:
        exported = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
        if not exported and not isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement


def _plain(value: object) -> object:
    """A syntax tree as nested tuples. ``ast.dump`` differs between versions of Python, by fields that are empty."""
    if isinstance(value, list):
        return [_plain(item) for item in value if not isinstance(item, (ast.Import, ast.ImportFrom))]
    if not isinstance(value, ast.AST):
        return value
    fields = []
    for name, field in ast.iter_fields(value):
        if name == "body" and isinstance(field, list):
            field = list(_counted(value))
        elif isinstance(value, ast.JoinedStr):  # Python 3.12 ends some format specs in an empty string
            field = [part for part in field if not (isinstance(part, ast.Constant) and part.value == "")]
        if name not in ("ctx", "kind", "type_comment") and field is not None and field != []:
            fields.append((name, _plain(field)))
    return (type(value).__name__, *fields)
