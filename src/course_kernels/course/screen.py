"""Reads an answer before it runs: whether it is Python, and whether it keeps to what an answer may use.

An answer computes; it has no need of files, processes, private attributes or this library's finished kernels. Being
strict here costs honest answers nothing, and says in time what an answer is meant to be made of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

IMPORTS = ("torch", "triton", "math")
_NAMES = {
    "__import__", "__builtins__", "__loader__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec", "exit",
    "getattr", "globals", "locals", "open", "quit", "setattr", "vars",
}  # fmt: skip
# Ways from torch and triton to the rest of the machine.
_ATTRIBUTES = {
    "os", "sys", "builtins", "importlib", "inspect", "ctypes", "subprocess", "shutil", "pathlib", "io", "gc", "pickle",
    "hub", "package", "load", "save", "multiprocessing", "distributed", "cpp_extension", "load_library", "runtime",
    "knobs", "backends", "testing", "tofile", "from_file", "threading", "warnings", "types", "modules",
}  # fmt: skip
_KERNEL_ATTRIBUTES = {"load"}  # tl.load is what kernels are made of


def complain(source: str, function: str, imports: Iterable[str] = ()) -> str | None:
    """What is wrong with an answer before it runs.

    Args:
        source: of the learner's cell.
        function: that it must define.
        imports: modules that it may import beyond `IMPORTS`.

    Returns:
        One message, or None.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()
        return f"line {error.lineno}: this is not Python yet: {error.msg}" + (f": {line}" if line else "")
    except (ValueError, RecursionError, MemoryError):
        return "this cannot be read as Python"
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    if function not in defined:
        near = f"; it defines {', '.join(sorted(defined))}" if defined else ""
        return f"the cell must define the function {function}{near}"
    allowed = {*IMPORTS, *imports}
    for node in ast.walk(tree):
        if found := _refused(node, allowed):
            return f"line {node.lineno}: {found}"
    return None


def _refused(node: ast.AST, allowed: set[str]) -> str | None:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
        for name in names:
            top = name.split(".")[0]
            if top == "course_kernels":
                return "this uses the finished library; the exercise is to write it yourself"
            if top not in allowed or any(part in _ATTRIBUTES or part.startswith("_") for part in name.split(".")):
                return f"an answer cannot import {name}; there are {', '.join(sorted(allowed))}"
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in _ATTRIBUTES - _KERNEL_ATTRIBUTES or alias.name.startswith("_"):
                    return f"an answer cannot import {alias.name}"
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return f"an answer has no need of {node.id}"
    if isinstance(node, ast.Attribute):
        root = node.value.id if isinstance(node.value, ast.Name) else ""
        if node.attr.startswith("_") or (
            node.attr in _ATTRIBUTES and not (node.attr in _KERNEL_ATTRIBUTES and root in ("tl", "language"))
        ):
            return f"an answer has no need of .{node.attr}"
        if isinstance(node.ctx, (ast.Store, ast.Del)) and root in ("torch", "triton", "tl", "math"):
            return f"this replaces {root}.{node.attr}, which changes nothing: results are compared in another process"
    return None
