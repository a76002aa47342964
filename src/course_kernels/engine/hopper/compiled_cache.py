"""A cache on disk of compiled CuTe DSL kernels: compiling one takes seconds, loading it takes milliseconds.

Each kernel is a file in the user's cache directory: an object file, then a line with its name, its compile time and a
digest. Loading a file runs its code. So a file that another user may have written is not loaded, and a file that a
crash or a full disk damaged is compiled again. If files cannot be read or written, kernels are compiled anyway.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import stat
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from course_kernels.files import write_atomically
from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.kernels.cute_sm90.form import Form

MOST_FILES = 512
# The packages that compile a kernel and that it calls; one of -cu12 and -cu13 is installed.
PACKAGES = ("apache-tvm-ffi", *("nvidia-cutlass-dsl" + part for part in ("", "-libs-base", "-libs-cu12", "-libs-cu13")))
_SOURCES = Path(__file__).parents[2] / "kernels" / "cute_sm90"
_CODES = _SOURCES.parent / "codes.py"  # what they import besides each other
# With these settings of CuTe DSL every kernel is compiled in every process.
_FRESH = ("CUTE_DSL_NO_CACHE", "CUTE_DSL_DISABLE_FILE_CACHING", "CUTE_DSL_KEEP")
_FUNCTION = "grouped_gemm"  # its name in every file

_log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """A file with a compiled kernel: what it was compiled for, in how many seconds, and its size in bytes."""

    name: str
    seconds: float
    size: int
    path: Path


def directory() -> Path:
    """The cache directory, under `$XDG_CACHE_HOME` or `~/.cache`. RuntimeError for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "grouped-gemm-course" / "cute"


def kept() -> list[Kept]:
    """The kernels in the cache directory, the last used one first."""
    found = []
    with contextlib.suppress(OSError, RuntimeError):
        for path in _by_last_use(directory()):
            with contextlib.suppress(OSError, ValueError):
                content = path.read_bytes()
                note = _note_of(content)
                found.append(Kept(note["name"], note["seconds"], len(content), path))
    return found


def compiled(config: CuteConfig, form: Form, dtype: str, out_dtype: str) -> Callable:
    """Load a kernel from its file, or compile it and, if possible, write the file.

    Args:
        config, form, dtype, out_dtype: of ``kernels.cute_sm90.compilation.compile_for``.

    Returns:
        A callable like that of ``compile_for``, but all arguments are required.

    Raises:
        ValueError: as ``compile_for``.
    """
    fields = (f"{field}={value}" for field, value in form._asdict().items())
    name = ", ".join([config.name, f"{dtype} to {out_dtype}", *fields])
    path = _path(config.name, key(config, form, dtype, out_dtype))
    started = time.perf_counter()
    loaded = path and _load(path)
    if loaded:
        seconds, took = time.perf_counter() - started, loaded.note["seconds"]
        _log.info("loaded %s in %.3f s; compiling it took %.1f s", name, seconds, took)
        return loaded.function

    from course_kernels.kernels.cute_sm90.compilation import compile_for

    started = time.perf_counter()
    function = compile_for(config, form, dtype, out_dtype)
    seconds = time.perf_counter() - started
    if path and _keep(function, path, name, seconds):
        _log.info("compiled %s in %.1f s; kept in %s", name, seconds, path)
        # Later processes run the file, so this one does, too.
        loaded = _load(path)
        if not loaded:
            _warn(f"what is kept in {path.parent} cannot be loaded here, and every process compiles anew")
        return loaded.function if loaded else function
    _log.info("compiled %s in %.1f s; not kept", name, seconds)
    return function


def key(config: CuteConfig, form: Form, dtype: str, out_dtype: str) -> str:
    """A digest of everything that a compiled kernel depends on: its source, the packages that compile it and their
    settings, the processor (the code that launches it uses its instructions), and the arguments of ``compiled``."""
    settings = sorted(item for item in os.environ.items() if item[0].startswith("CUTE_DSL_"))
    parts = (_sources(), _versions(), _machine(), settings, config, form, dtype, out_dtype)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _sources() -> str:
    files = *sorted(_SOURCES.rglob("*.py")), _CODES
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


# At import. If the sources change later, this process still compiles the old ones, so it uses no files.
_SOURCES_IMPORTED = _sources()


def _versions() -> list[str | None]:
    found = []
    for package in PACKAGES:
        try:
            found.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            found.append(None)
    return found


@functools.cache
def _machine() -> tuple:
    """The processor's architecture and features. Code for a processor with more features would crash here."""
    features = set()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        features = {line.partition(":")[2] for line in file if line.lower().startswith(("flags", "features"))}
    return platform.system(), platform.machine(), sorted(features)


def _path(name: str, digest: str) -> Path | None:
    """The file for a kernel; None if none can be kept, or if a setting of CuTe DSL asks for a fresh compilation."""
    if os.name != "posix" or _sources() != _SOURCES_IMPORTED or any(map(os.environ.get, _FRESH)):
        return None
    try:
        folder = directory()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(folder.stat()):
            _warn(f"{folder} belongs to another user, or others may write to it; compiled kernels are not kept there")
            return None
    except (OSError, RuntimeError) as error:
        _warn(f"compiled kernels cannot be kept: {error}")
        return None
    return folder / f"{name}-{digest}.o"


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@functools.cache
def _warn(message: str) -> None:
    """Warn once."""
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def _note_of(content: bytes) -> dict:
    """The line after an object file; ValueError if it is missing or belongs to another object file."""
    code, _, line = content.rpartition(b"\n")
    note = json.loads(line)
    if not isinstance(note, dict) or note.get("sha256") != hashlib.sha256(code).hexdigest():
        raise ValueError("the digest is another one")
    if not isinstance(note.get("name"), str) or not isinstance(note.get("seconds"), int | float):
        raise ValueError("it does not say what it is")
    return note


class _Loaded(NamedTuple):
    function: Callable
    note: dict


def _load(path: Path) -> _Loaded | None:
    """Load a file; None if it is missing or cannot be trusted. A broken file is removed."""
    try:
        with path.open("rb") as file:
            if not _is_ours(os.fstat(file.fileno())):
                _warn(f"{path.parent} has files of another user, or that others may write to; they are not used")
                return None
            note = _note_of(file.read())

            from cutlass.cute.runtime import load_module

            # By file descriptor: another file may have taken the path since the check.
            function = load_module(f"/dev/fd/{file.fileno()}", enable_tvm_ffi=True)[_FUNCTION]
            with contextlib.suppress(OSError):
                os.utime(file.fileno())
            return _Loaded(function, note)
    except OSError:
        return None
    except Warning:  # from ``_warn``, where warnings are errors
        raise
    except Exception as error:  # from the note or the loader
        _log.info("%s is broken, and removed: %s", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def _keep(function, path: Path, name: str, seconds: float) -> bool:
    """Write a compiled kernel to its file, atomically, and remove the least recently used files."""
    try:
        with tempfile.NamedTemporaryFile() as file:
            function.export_to_c(file.name, _FUNCTION)
            code = file.read()
        note = {"name": name, "seconds": round(seconds, 3), "sha256": hashlib.sha256(code).hexdigest()}
        write_atomically(path, code + b"\n" + json.dumps(note).encode(), mode=0o600)
    except Exception as error:  # from the file system or the exporter: the kernel itself works
        _warn(f"compiled kernels cannot be kept in {path.parent}: {getattr(error, 'strerror', error)}")
        return False
    with contextlib.suppress(OSError):
        for old in _by_last_use(path.parent)[MOST_FILES:]:
            with contextlib.suppress(OSError):
                old.unlink()
    return True


def _by_last_use(folder: Path) -> list[Path]:
    """The files of a folder, the last used one first."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may remove it at this moment
            if path.is_file():
                found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]
