"""What has been graded so far, kept beside the grades, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import sys
from pathlib import Path

import course_kernels


@functools.cache
def engine() -> str:
    """A digest of everything that decides about a grade but the answer: this package, torch, Triton, numpy, Python.

    Raises:
        RuntimeError: torch or Triton is not installed. Without numpy a GPU can stand in for the interpreter.
    """
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for package in ("torch", "triton", "numpy"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if package != "numpy":
                raise RuntimeError(f"answers cannot be checked here: {package} is not installed") from None
            version = "none"
        digest.update(f"{package} {version}\n".encode())
    root = Path(course_kernels.__file__).parent
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.toml")]):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root)} {content}\n".encode())
    return digest.hexdigest()


def key(exercise: str, source: str, seed: int) -> str:
    """What a grade is kept under: the same for the same answer, inputs and engine.

    Args:
        exercise: its name.
        source: of the answer.
        seed: of the inputs.
    """
    parts = (engine(), exercise, str(seed), hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Journal:
    """A file of one line for each checked answer. One process at a time holds it.

    Args:
        path: of the file; made if it does not exist. Lines that cannot be read are passed over.

    Raises:
        OSError: it cannot be written.
        BlockingIOError: another process holds it.
    """

    def __init__(self, path: Path):
        self.path = path
        self.seed: int | None = None
        self._results: dict[str, dict] = {}
        self._file = open(path, "a+b")  # noqa: SIM115 (closed by close)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.seek(0)
            data = self._file.read()
        except BaseException:
            self._file.close()
            raise
        for line in data.splitlines():
            self._note(line)
        if data and not data.endswith(b"\n"):
            self._file.write(b"\n")  # the last line was cut short

    def _note(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            if "seed" in entry:
                self.seed = int(entry["seed"])
            else:
                self._results[entry["key"]] = dict(entry["result"])
        except (ValueError, KeyError, TypeError):
            pass

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file. What could not be written was told then; it is tried once more here, and not told."""
        with contextlib.suppress(OSError):
            self._file.close()

    def use_seed(self, seed: int) -> None:
        """Keep the seed, which the next run takes if it is given none."""
        if seed != self.seed:
            self.seed = seed
            self._write({"seed": seed})

    def get(self, key: str) -> dict | None:
        """What was kept under a key."""
        return self._results.get(key)

    def put(self, key: str, result: dict) -> None:
        """Keep the result of a check, at once on the disk's side of this process."""
        self._results[key] = result
        self._write({"key": key, "result": result})

    def _write(self, entry: dict) -> None:
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
