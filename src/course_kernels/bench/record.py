"""Records of measurements: JSON files that say where their numbers come from, and which code they depend on."""

from __future__ import annotations

import datetime
import json
import pathlib
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence

import torch

from course_kernels.files import write_atomically
from course_kernels.provenance import ROOT, digest, files

__all__ = [
    "LIBRARY",
    "RESULTS",
    "changed_files",
    "commit",
    "is_stale",
    "load",
    "provenance",
    "read",
    "rows_on_lines",
    "stale",
    "why_stale",
    "write",
]

RESULTS = ROOT.parent / "benchmarks" / "results"  # of the checkout that this package runs from
LIBRARY = ("course_kernels/**/*.py", "course_kernels/**/*.json")
_SHOWN = 5  # listed files of a stale record


def _git(*arguments: str) -> str | None:
    """The output of a git command; None where it fails, as outside a checkout."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def commit() -> str | None:
    """Commit of the working tree with "+changes" where it differs; None outside a git checkout."""
    head, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    return head and head + "+changes" * bool(changes)


def provenance(commit_id: str | None = None, depends_on: Sequence[str] = LIBRARY) -> dict:
    """Machine, versions, date, commit and dependencies of a measurement made now, on the current GPU.

    Args:
        commit_id: of the code, where git cannot say.
        depends_on: patterns of the files that decide the measurement, as ``course_kernels.provenance`` takes them.
    """
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
        "depends_on": list(depends_on),
        "depends_digest": digest(depends_on),
    }


def write(path: str | pathlib.Path, results: Mapping, about: Mapping) -> None:
    """Write results to a JSON file that diffs line by line, in one step: an interruption leaves the old file.

    Args:
        about: their ``provenance``.
    """
    text = json.dumps({"provenance": about, **results}, indent=1)
    write_atomically(path, rows_on_lines(text) + "\n")


def rows_on_lines(text: str) -> str:
    """Indented JSON with each list of plain values, a row of a table, on one line."""
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda row: "[" + re.sub(r"\s*\n\s*", " ", row[1]) + "]", text)


def load(name: str) -> dict:
    """The record ``benchmarks/results/<name>.json``; FileNotFoundError without it, or without the checkout."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"no record {name!r}: records are in benchmarks/results of the course's checkout")
    return read(path)


def read(path: str | pathlib.Path) -> dict:
    """A record written by ``write``; ValueError for a file without provenance, whose numbers cannot be trusted."""
    record = json.loads(pathlib.Path(path).read_text())
    if "provenance" not in record:
        raise ValueError(f"{path} has no provenance: it was not written by a benchmark program")
    return record


def is_stale(record: Mapping) -> bool:
    """Whether code that a record depends on has changed since, or is gone; so is a record without dependencies."""
    about = record["provenance"]
    try:
        return about.get("depends_digest") != digest(about.get("depends_on", ()))
    except ValueError:
        return True


def stale() -> dict[str, str]:
    """The stale records in benchmarks/results by name, each with the reason."""
    found = {path.stem: why_stale(read(path)) for path in sorted(RESULTS.glob("*.json"))}
    return {name: why for name, why in found.items() if why is not None}


def why_stale(record: Mapping) -> str | None:
    """The reason why a record's numbers may differ from those of today's code; None if they do not."""
    if not is_stale(record):
        return None
    about = record["provenance"]
    if gone := [pattern for pattern in about.get("depends_on", ()) if _is_gone(pattern)]:
        why = f"gone since: {_listed(gone)}"
    else:
        changed = changed_files(record)
        why = f"changed since: {'files unknown: git does not have the commit' if changed is None else _listed(changed)}"
    return f"measured at {str(about.get('commit'))[:12]}; {why}"


def changed_files(record: Mapping) -> list[str] | None:
    """Files that a record depends on and that differ from those of its commit, relative to the checkout.

    A change of a comment counts here, so a record with changed files need not be stale. None: git does not know the
    commit, or the record does not say what it depends on.
    """
    about = record["provenance"]
    patterns = [f":(glob){pattern}" for pattern in about.get("depends_on", ())]
    commit_id = str(about.get("commit")).removesuffix("+changes")
    printed = _git("diff", "--name-only", "--no-renames", commit_id, "--", *patterns) if patterns else None
    return None if printed is None else printed.splitlines()


def _is_gone(pattern: str) -> bool:
    try:
        return not files([pattern])
    except ValueError:
        return True


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
    return (", ".join(names[:_SHOWN]) or "nothing") + more
