"""Kernels of notebook cells, written to a file that the compiling process can read.

A cell's source is known only to the process that ran it. The file has the kernel, the ``@triton.jit`` functions of
cells that it calls, and imports of everything else that it names.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

__all__ = ["plain_function", "write_file"]

_HEAD = "import triton\nimport triton.language as tl\n"


def plain_function(kernel) -> FunctionType | None:
    """The Python function inside Triton's wrappers; None where there is none."""
    while not hasattr(kernel, "__code__") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel if hasattr(kernel, "__code__") else None


def write_file(*functions) -> Path:
    """Write functions of cells, and those of cells that they call, to a file; the same functions get the same file.

    Raises:
        ValueError: a function has no source code, such as one defined by ``exec``.
    """
    found: dict[str, str] = {}
    for function in functions:
        _collect(plain_function(function), found)
    imports = "".join(line for line in found.values() if line.startswith(("import ", "from ")))
    sources = [text for text in found.values() if not text.startswith(("import ", "from "))]
    text = _HEAD + imports + "\n\n" + "\n\n".join(sources)
    path = Path(_folder().name, f"cell_{hashlib.sha256(text.encode()).hexdigest()[:16]}.py")
    if not path.exists():
        path.write_text(text, encoding="utf-8")
    return path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="course_kernels_")


def _collect(function: FunctionType, found: dict[str, str]) -> None:
    """Add a function's source to ``found``, after what it names: name → source or import."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise ValueError(
            f"kernel {function.__qualname__!r} must have source code, like a function in a cell"
        ) from error
    for name in _names(source):
        if name in found or name not in function.__globals__ or name in ("triton", "tl"):
            continue
        value = function.__globals__[name]
        inner = plain_function(value)
        if isinstance(value, ModuleType):
            found[name] = f"import {value.__name__} as {name}\n"
        elif inner is not None and Path(inner.__code__.co_filename).is_file():
            found[name] = f"from {inner.__module__} import {inner.__name__} as {name}\n"
        elif inner is not None and inner is not function:
            found[name] = ""  # a function that calls itself ends here
            _collect(inner, found)
        elif type(value).__name__ == "constexpr":
            found[name] = f"{name} = tl.constexpr({value.value!r})\n"
    found.pop(function.__name__, None)  # last, after what it names
    found[function.__name__] = source


def _names(source: str) -> Iterator[str]:
    """Names that a function reads and does not bind itself."""
    (definition,) = ast.parse(source).body
    names = [node for node in ast.walk(definition) if isinstance(node, ast.Name)]
    own = {argument.arg for argument in ast.walk(definition) if isinstance(argument, ast.arg)}
    own |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    return (node.id for node in names if node.id not in own)
