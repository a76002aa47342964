"""A digest of source files, for records that say with which code they were made."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class _Essence(ast.NodeTransformer):
    """Drops imports and docstrings."""

    def visit_Import(self, node: ast.AST) -> None:
        return None

    visit_ImportFrom = visit_Import

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node


def digest(patterns: Sequence[str]) -> str:
    """A digest of files of the installed packages. In Python files comments, docstrings and imports do not count.

    Args:
        patterns: glob patterns relative to the folder that holds both packages, e.g. "course_kernels/kernels/*.py".

    Raises:
        ValueError: no file matches a pattern.
    """
    files: set[Path] = set()
    for pattern in patterns:
        found = set(ROOT.glob(pattern))
        if not found:
            raise ValueError(f"no file matches {pattern}")
        files |= found
    result = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        if path.suffix == ".py":
            content = ast.dump(_Essence().visit(ast.parse(content))).encode(errors="surrogatepass")
        result.update(f"{path.relative_to(ROOT).as_posix()} {hashlib.sha256(content).hexdigest()}\n".encode())
    return result.hexdigest()
