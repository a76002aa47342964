"""The files that a measurement depends on: modules that its processes have loaded, and data files that they read.

A measuring program imports this module before anything else of the library. Its child processes do so, too, and call
``share`` when they are done.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from course_kernels.provenance import ROOT

__all__ = ["Watch", "share"]

_PACKAGE = "course_kernels"
_FOLDERS = (ROOT / _PACKAGE, ROOT.parent / "benchmarks")
_SHARED = "COURSE_KERNELS_LOADED"  # environment variable: the folder where child processes write their lists of files
# These modules write records and change no measured number.
_WRITERS = {"run", *(f"{_PACKAGE}.{name}" for name in ("bench.loaded", "bench.record", "files", "provenance"))}
_MAIN = ("__main__", "__mp_main__")
# Importing the package loads most of the library. Of these modules, only those that a program needs count.
_BROUGHT = {name for name in sys.modules if name.partition(".")[0] == _PACKAGE}
_read: set[Path] = set()


def _note_read(event: str, arguments: tuple) -> None:
    """An audit hook that notes opened data files of the library."""
    if event == "open" and isinstance(arguments[0], (str, Path)):
        path = Path(arguments[0])
        if path.suffix not in (".py", ".pyc") and _FOLDERS[0] in path.parents:
            _read.add(path)


@functools.cache
def _install() -> None:
    sys.addaudithook(_note_read)


if _SHARED in os.environ:
    _install()


class Watch:
    """A context that notes every data file that this process and its child processes read."""

    def __enter__(self) -> Watch:
        _install()
        self._folder = tempfile.TemporaryDirectory()
        os.environ[_SHARED] = self._folder.name
        return self

    def __exit__(self, *error) -> None:
        del os.environ[_SHARED]
        self._folder.cleanup()

    def files(self) -> list[str]:
        """The files so far, relative to ``provenance.ROOT``, sorted: patterns for ``record.provenance``."""
        children = (json.loads(path.read_text()) for path in Path(self._folder.name).glob("*.json"))
        return sorted({*_files(), *(file for files in children for file in files)})


def share() -> None:
    """Tell the program that started this process which files it has loaded and read, if it watches."""
    if folder := os.environ.get(_SHARED):
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(_files()))


def _files() -> list[str]:
    """The files of this process. Temporary data files, which no longer exist, are left out."""
    # Read ``__dict__``: ``getattr`` on a lazily loading module might load it.
    stored = {name: getattr(module, "__dict__", {}).get("__file__") for name, module in list(sys.modules.items())}
    modules = {name: Path(file) for name, file in stored.items() if file}
    ours = {name for name, path in modules.items() if any(folder in path.parents for folder in _FOLDERS)}
    due, needed = [name for name in ours | {*_MAIN} if name not in _BROUGHT], set()
    while due:
        name = due.pop()
        if name not in needed and name in modules and name not in _WRITERS and (name in ours or name in _MAIN):
            needed.add(name)
            due += _imported(name)
    paths = {modules[name] for name in needed & ours if name not in _MAIN} | {path for path in _read if path.is_file()}
    return sorted(Path(os.path.relpath(path, ROOT)).as_posix() for path in paths)


def _imported(name: str) -> Iterator[str]:
    """The modules that a module imports, and its parent packages. A name that ``course_kernels`` re-exports counts as
    an import of the module that defines it."""
    package = name
    while (package := package.rpartition(".")[0]) not in ("", _PACKAGE):
        yield package
    for module, imported in _statements(sys.modules[name].__file__):
        if imported is None:
            yield module
        elif f"{module}.{imported}" in sys.modules:
            yield f"{module}.{imported}"
        else:
            defined = str(getattr(getattr(sys.modules.get(module), imported, None), "__module__", ""))
            yield defined if module == _PACKAGE and defined.startswith(f"{_PACKAGE}.") else module


@functools.cache
def _statements(file: str) -> list[tuple[str, str | None]]:
    """Module and name of each import in a file; the name is None for ``import module``."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name) for alias in node.names]
    return found
