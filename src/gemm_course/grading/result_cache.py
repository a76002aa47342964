"""The results of checks so far, kept beside the grades, so that an interrupted run goes on where it stopped.

The file may lie among the hand-ins. So every line carries a code made with a key of the grader's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import hmac
import importlib.metadata
import json
import os
import sys
from pathlib import Path

import msgspec

from course_kernels import provenance
from gemm_course import progress
from gemm_course.judging.results import Result

_MAX_LINE = 1 << 20

# The files that decide about a result. A test follows the imports of the judge and its workers, and finds each here.
DEPENDS_ON = (
    "gemm_course/__init__.py",
    "gemm_course/exercises/*.py",
    "gemm_course/exercises/*/*.py",
    "gemm_course/exercises/*/*.toml",
    "gemm_course/isolation/*.py",
    "gemm_course/judging/*.py",
    "gemm_course/lessons/*.py",
    "gemm_course/notebook/cells.py",
    "gemm_course/runner/*.py",
    "course_kernels/*.py",
    "course_kernels/kernels/*.py",
    "course_kernels/layout/*.py",
    "course_kernels/lists/*.py",
    "course_kernels/testing/*.py",
)


@functools.cache
def checker_digest() -> str:
    """A digest of everything that decides about a result but the answer: our code, torch, Triton, numpy, Python."""
    parts = [f"{sys.version_info[:2]}"]
    for package in ("torch", "triton", "numpy"):
        try:
            parts.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            if package != "numpy":  # without numpy, a GPU can replace the interpreter
                raise RuntimeError(f"answers cannot be checked here: {package} is not installed") from None
    parts.append(provenance.digest(DEPENDS_ON))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def key(exercise: str, source: str, seed: int) -> str:
    """The key of a result: the same for the same exercise (by name), answer, inputs and checker."""
    parts = (checker_digest(), exercise, str(seed), hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class _Line(msgspec.Struct, omit_defaults=True):
    """A line of the file: a seed, or a key, its result and the seconds that the check took."""

    seed: int | None = None
    key: str = ""
    result: Result | None = None
    seconds: float = 0.0


class ResultCache(contextlib.AbstractContextManager):
    """A file with a line for each checked answer: a code and JSON. Lines that we did not write are skipped.

    One process at a time holds it; another gets a BlockingIOError.
    """

    def __init__(self, path: Path):
        self.path = path
        self.seed: int | None = None
        self._results: dict[str, Result] = {}
        self._seconds: dict[str, float] = {}
        self._key = _own_key()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # no pipe, nobody else's file
        self._file = os.fdopen(os.open(path, flags, 0o666), "a+b")  # closed by __exit__
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.seek(0)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        text = b"\n"
        while more := self._file.readline(_MAX_LINE):  # in parts: lines that are not ours may be of any length
            text = more
            code, _, payload = text.rstrip(b"\n").partition(b" ")
            if len(code) == 64 and hmac.compare_digest(code, self._code(payload)):
                with contextlib.suppress(ValueError):
                    self._load(msgspec.convert(json.loads(payload), _Line))
        if not text.endswith(b"\n"):
            self._file.write(b"\n")  # the last line was cut short

    def _load(self, line: _Line) -> None:
        if line.seed is not None:
            self.seed = line.seed
        elif line.result is not None:
            self._results[line.key], self._seconds[line.key] = line.result, line.seconds

    def __exit__(self, *_) -> None:
        with contextlib.suppress(OSError):  # an earlier write has raised it; closing only tries once more
            self._file.close()

    def use_seed(self, seed: int) -> None:
        """Keep the seed. The next run takes it unless it is given another."""
        if seed != self.seed:
            self._write(_Line(seed=seed))

    def get(self, key: str) -> Result | None:
        """The result under a key."""
        return self._results.get(key)

    def seconds(self, key: str) -> float:
        """The time that the check under a key took; 0 if there is no result."""
        return self._seconds.get(key, 0.0)

    def put(self, key: str, result: Result, seconds: float = 0.0) -> None:
        """Keep the result of a check; it is in the operating system's hands when this returns."""
        self._write(_Line(key=key, result=result, seconds=seconds))

    def _write(self, line: _Line) -> None:
        self._load(line)
        # json escapes half a surrogate pair, which an answer's message can hold; msgspec cannot write it.
        payload = json.dumps(msgspec.to_builtins(line)).encode()
        self._file.write(self._code(payload) + b" " + payload + b"\n")
        self._file.flush()

    def _code(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, "sha256").hex().encode()


def _own_key() -> bytes:
    """The grader's key, made when it is first needed. If the key cannot be stored, each run makes a new one."""
    path, new_key = progress.path().with_name("grading.key"), os.urandom(32)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(new_key)
        stored = path.read_bytes()
        return stored if len(stored) >= len(new_key) else new_key
    return new_key
