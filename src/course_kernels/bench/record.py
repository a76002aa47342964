"""Records of measurements: JSON files that say where their numbers come from."""

from __future__ import annotations

import datetime
import hashlib
import json
import pathlib
import platform
import re
import subprocess

import torch

import course_kernels


def source_digest() -> str:
    """SHA-256 over the library's Python files, so that a record can be matched with the code that it measured."""
    root = pathlib.Path(course_kernels.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def commit() -> str | None:
    """Commit of the working tree with "+changes" where it differs; None outside a git checkout."""
    root = pathlib.Path(course_kernels.__file__).parent

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def provenance(commit_id: str | None = None) -> dict:
    """Machine, versions, date and commit of a measurement made now, on the current GPU."""
    import triton

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit_id or commit(),
        "source_sha256": source_digest(),
    }


def write(path: str | pathlib.Path, results: dict, commit_id: str | None = None) -> None:
    """Write results with their provenance to a JSON file that diffs line by line."""
    text = json.dumps({"provenance": provenance(commit_id), **results}, indent=1)
    # A list of plain values is a row of a table: one line.
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda row: "[" + re.sub(r"\s*\n\s*", " ", row[1]) + "]", text)
    pathlib.Path(path).write_text(text + "\n")


def load(name: str) -> dict:
    """The record ``benchmarks/results/<name>.json`` of the checkout that this package runs from.

    Raises:
        FileNotFoundError: the package is installed without the checkout, or there is no such record.
    """
    path = pathlib.Path(course_kernels.__file__).parents[2] / "benchmarks" / "results" / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"no record {name!r}: records lie in benchmarks/results of the course's checkout")
    return read(path)


def read(path: str | pathlib.Path) -> dict:
    """A record written by ``write``.

    Raises:
        ValueError: the file has no provenance, so its numbers cannot be trusted.
    """
    record = json.loads(pathlib.Path(path).read_text())
    if "provenance" not in record:
        raise ValueError(f"{path} has no provenance: it was not written by a benchmark program")
    return record
