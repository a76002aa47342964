"""The notebooks in what somebody hands in, a folder or a zip file: read, never unpacked onto the disk, never run.

Everything here comes from anyone. What would be dangerous or costly to read is refused with a reason, and costs
nobody else anything.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

MAX_NOTEBOOK_MB = 16  # the course's own, outputs included, have 0.1
MAX_ARCHIVE_MB = 64
MAX_UNPACKED_MB = 64  # all notebooks of one archive together
MAX_TOTAL_MB = 256  # all notebooks of one folder together
MAX_FILES = 20_000
MAX_DEPTH = 12
LINK = "is a link, which is not followed"
NOTEBOOK, ZIP, ARCHIVE, OTHER = "notebook", "zip", "archive", "other"
_SUFFIXES = {
    NOTEBOOK: (".ipynb", ".ipynb.txt", ".ipynb.json"),  # some browsers add to what they take for text
    ZIP: (".zip",),
    ARCHIVE: (".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar"),
}
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others can ask for gigabytes before the first byte comes
_OUTSIDE = re.compile(r"/|[A-Za-z]:/")
_MB = 1 << 20


class File(NamedTuple):
    """A file that was handed in, or why something could not be looked at.

    Attributes:
        where: its path in what was handed in.
        data: its bytes; empty where it was refused.
        refused: why; empty otherwise.
        modified: when it was last written, in seconds since 1970; 0 where that is not known.
        other: whether it is neither a notebook nor an archive: its name is all that is looked at.
    """

    where: str
    data: bytes = b""
    refused: str = ""
    modified: float = 0.0
    other: bool = False


class Refused(Exception):
    """Something that is not read, and why."""


def passed_over(name: str) -> bool:
    """Whether a file or folder is of no interest: hidden, or left behind by an operating system or a tool."""
    return name.startswith(".") or name in ("__MACOSX", "node_modules", "__pycache__")


def kind(name: str) -> str:
    """What a file is by its name: `NOTEBOOK`, `ZIP`, `ARCHIVE` where it is one of another kind, or `OTHER`."""
    name = name.casefold()
    return next((each for each, suffixes in _SUFFIXES.items() if name.endswith(suffixes)), OTHER)


def notebook(path: Path, where: str) -> File:
    """One notebook from the disk.

    Args:
        path: of the file.
        where: what to call it.
    """
    try:
        with _opened(path, MAX_NOTEBOOK_MB, "a notebook") as file:
            return File(where, file.read(MAX_NOTEBOOK_MB * _MB), modified=os.fstat(file.fileno()).st_mtime)
    except (OSError, Refused) as error:
        return File(where, refused=_reason(error))


def file(path: Path, where: str) -> list[File]:
    """What a file is or holds.

    Args:
        path: of the file.
        where: what to call it.
    """
    found = kind(path.name)
    if found == NOTEBOOK:
        return [notebook(path, where)]
    if found == ZIP:
        return archive(path, where)
    return [File(where, refused="is no zip file: unpack it") if found == ARCHIVE else File(where, other=True)]


def folder(root: Path) -> list[File]:
    """Every file in a folder, its folders and its zip files; what was refused among them.

    Args:
        root: of what one person handed in.
    """
    return _without_the_courses_own(list(_walk(root)))


def archive(path: Path, where: str = "") -> list[File]:
    """Every file in a zip file, or the one reason why nothing in it is looked at.

    Args:
        path: of the file.
        where: path of the archive in what was handed in; by default its name.
    """
    where = where or path.name
    try:
        with _opened(path, MAX_ARCHIVE_MB, "an archive") as file, zipfile.ZipFile(file) as opened:
            return _without_the_courses_own(list(_members(opened, where)))
    except (OSError, Refused) as error:
        return [File(where, refused=_reason(error))]
    except Exception as error:  # whatever its reader stumbles over is this archive's fault
        return [File(where, refused=f"cannot be read as a zip file ({type(error).__name__})")]


def _opened(path: Path, limit_mb: int, kind: str):
    """A regular file of bounded size, open for reading; no link is followed and no pipe waited for."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        if path.is_symlink():
            raise Refused(LINK) from None
        raise
    file = os.fdopen(handle, "rb")
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise Refused("is no file")
    if status.st_size > limit_mb * _MB:
        file.close()
        raise Refused(f"has {status.st_size / _MB:,.0f} MB; {kind} may have {limit_mb}")
    return file


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Refused) else f"cannot be read: {getattr(error, 'strerror', None) or error}"


def _walk(root: Path) -> Iterator[File]:
    stack, seen, left = [(root, "", 0)], 0, MAX_TOTAL_MB * _MB
    while stack:
        here, prefix, depth = stack.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            yield File(prefix.rstrip("/") or here.name, refused=_reason(error))
            continue
        for entry in entries:
            seen += 1
            if seen > MAX_FILES:
                yield File(prefix or here.name, refused=f"more than {MAX_FILES:,} files: the rest is not looked at")
                return
            where = prefix + entry.name
            if passed_over(entry.name):
                continue
            if entry.is_symlink():
                if kind(entry.name) != OTHER or Path(entry.path).is_dir():
                    yield File(where, refused=LINK)
            elif entry.is_dir():
                if depth < MAX_DEPTH:
                    stack.append((Path(entry.path), where + "/", depth + 1))
                else:
                    yield File(where, refused=f"more than {MAX_DEPTH} folders deep: not looked at")
            else:
                found = file(Path(entry.path), where)
                yield from found
                left -= sum(len(each.data) for each in found)
                if left < 0:
                    reason = f"more than {MAX_TOTAL_MB} MB of notebooks: the rest is not looked at"
                    yield File(prefix or here.name, refused=reason)
                    return


def _members(opened: zipfile.ZipFile, where: str) -> Iterator[File]:
    infos = opened.infolist()
    if len(infos) > MAX_FILES:
        raise Refused(f"holds {len(infos):,} files; {MAX_FILES:,} are looked at at most")
    names = [info.orig_filename.replace("\\", "/") for info in infos]  # some tools of Windows write backslashes
    for name in names:
        if _OUTSIDE.match(name) or ".." in PurePosixPath(name).parts:
            raise Refused(f"a file in it would land outside of its folder: {name[:80]}")
    left = MAX_UNPACKED_MB * _MB
    for info, name in zip(infos, names):
        if any(map(passed_over, PurePosixPath(name).parts)) or name.endswith("/"):
            continue
        inside = f"{where}/{name}"
        if kind(name) == OTHER:
            yield File(inside, other=True)
            continue
        if reason := _why_not(info):
            yield File(inside, refused=reason)
            continue
        if info.file_size > left:
            raise Refused(f"its notebooks unpack to more than {MAX_UNPACKED_MB} MB")
        left -= info.file_size
        try:
            with opened.open(info) as member:
                yield File(inside, member.read(info.file_size), modified=_modified(info))
        except Exception as error:  # damaged, or made to look so
            yield File(inside, refused=f"cannot be unpacked ({type(error).__name__})")


def _modified(info: zipfile.ZipInfo) -> float:
    with contextlib.suppress(ValueError, OverflowError):  # a month 0 and a year 2107 can be stored, too
        return time.mktime((*info.date_time, 0, 0, -1))
    return 0.0


def _why_not(info: zipfile.ZipInfo) -> str:
    if stat.S_ISLNK(info.external_attr >> 16):
        return LINK
    if kind(info.filename) != NOTEBOOK:
        return f"is {'a zip file' if kind(info.filename) == ZIP else 'an archive'} in a zip file, which is not opened"
    if info.flag_bits & 1:
        return "is encrypted"
    if info.file_size > MAX_NOTEBOOK_MB * _MB:
        return f"unpacks to {info.file_size / _MB:,.0f} MB; a notebook may have {MAX_NOTEBOOK_MB}"
    if info.compress_type not in _METHODS:
        return "is packed by a method other than deflate"
    return ""


def _without_the_courses_own(files: list[File]) -> list[File]:
    """Whoever hands in the whole repository hands in its solutions and lessons, too: they are not theirs."""
    parts = [PurePosixPath(file.where).parts for file in files]
    roots = {each[:i] for each in parts for i, part in enumerate(each[:-1]) if part == "exercises"}

    def own(each: tuple[str, ...]) -> bool:
        return any(part in ("solutions", "notebooks") and each[:i] in roots for i, part in enumerate(each[:-1]))

    return [file for file, each in zip(files, parts) if file.refused or not own(each)]
