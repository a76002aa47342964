"""Reads the notebooks in a hand-in, which is a folder or a zip file. Never unpacks them to the disk or runs them.

A stranger may hand in any file. A file that is dangerous or costly to read is refused with a reason, and other students
are not affected.
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
from typing import BinaryIO, NamedTuple

MAX_NOTEBOOK_MB = 16  # the course's own, outputs included, have 0.1
MAX_ARCHIVE_MB = 64
MAX_UNPACKED_MB = 64  # all notebooks of one archive together
MAX_TOTAL_MB = 256  # all notebooks of one folder together
MAX_FILES = 20_000
MAX_DEPTH = 12
MAX_NAME = 1000
LINK = "is a link, and links are not followed"
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
    """A file that was handed in, or the reason why it was not read."""

    where: str  # path in the hand-in
    data: bytes = b""  # empty if it was refused
    refused: str = ""  # the reason; empty otherwise
    modified: float = 0.0  # in seconds since 1970; 0 if that is not known
    name_only: bool = False  # neither a notebook nor an archive: only its name counts


class Refused(Exception):
    """A file is not read. The message says why."""


def is_ignored(name: str) -> bool:
    """Return whether a file or folder does not count: hidden, or made by an operating system or a tool."""
    return name.startswith(".") or name in ("__MACOSX", "node_modules", "__pycache__")


def file_kind(name: str) -> str:
    """The kind of a file by its name: `NOTEBOOK`, `ZIP`, `ARCHIVE` for archives of other kinds, or `OTHER`."""
    name = name.casefold()
    return next((kind for kind, suffixes in _SUFFIXES.items() if name.endswith(suffixes)), OTHER)


def read_file(path: Path, where: str) -> list[File]:
    """A file, or the files in it if it is a zip file; `where` is its path in what was handed in."""
    kind = file_kind(path.name)
    try:
        if kind == NOTEBOOK:
            with _open(path, MAX_NOTEBOOK_MB, "a notebook") as file:
                return [File(where, file.read(MAX_NOTEBOOK_MB * _MB), modified=os.fstat(file.fileno()).st_mtime)]
        if kind == ZIP:
            with _open(path, MAX_ARCHIVE_MB, "an archive") as file, zipfile.ZipFile(file) as archive:
                return _without_course_files(list(_members(archive, where)))
    except (OSError, Refused) as error:
        return [File(where, refused=_describe(error))]
    except Exception as error:  # whatever zipfile raises is this archive's fault
        return [File(where, refused=f"cannot be read as a zip file ({type(error).__name__})")]
    return [File(where, refused="is not a zip file: unpack it") if kind == ARCHIVE else File(where, name_only=True)]


def read_folder(root: Path) -> list[File]:
    """Every file in one person's folder, its subfolders and its zip files, refused ones included."""
    return _without_course_files(list(_walk(root)))


@contextlib.contextmanager
def _open(path: Path, limit_mb: int, kind: str) -> Iterator[BinaryIO]:
    """A regular file of bounded size, open for reading. It follows no link and waits for no pipe."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        if path.is_symlink():
            raise Refused(LINK) from None
        raise
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise Refused("is not a regular file")
        if status.st_size > limit_mb * _MB:
            raise Refused(f"has {status.st_size / _MB:,.0f} MB; {kind} may have {limit_mb}")
        yield file


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, Refused) else f"cannot be read: {getattr(error, 'strerror', None) or error}"


def _walk(root: Path) -> Iterator[File]:
    stack, count, remaining = [(root, "", 0)], 0, MAX_TOTAL_MB * _MB
    while stack:
        folder, prefix, depth = stack.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            yield File(prefix.rstrip("/") or folder.name, refused=_describe(error))
            continue
        for entry in entries:
            count += 1
            if count > MAX_FILES:
                yield File(prefix or folder.name, refused=f"more than {MAX_FILES:,} files: the others were not read")
                return
            where = prefix + entry.name
            if is_ignored(entry.name):
                continue
            if entry.is_symlink():
                if file_kind(entry.name) != OTHER or Path(entry.path).is_dir():
                    yield File(where, refused=LINK)
            elif entry.is_dir():
                if depth < MAX_DEPTH:
                    stack.append((Path(entry.path), where + "/", depth + 1))
                else:
                    yield File(where, refused=f"more than {MAX_DEPTH} folders deep: not read")
            else:
                files = read_file(Path(entry.path), where)
                yield from files
                remaining -= sum(len(file.data) for file in files)
                if remaining < 0:
                    reason = f"more than {MAX_TOTAL_MB} MB of notebooks: the others were not read"
                    yield File(prefix or folder.name, refused=reason)
                    return


def _members(archive: zipfile.ZipFile, where: str) -> Iterator[File]:
    infos = archive.infolist()
    if len(infos) > MAX_FILES:
        raise Refused(f"has {len(infos):,} files; {MAX_FILES:,} are allowed")
    names = [info.orig_filename.replace("\\", "/") for info in infos]  # some tools of Windows write backslashes
    for name in names:
        if len(name) > MAX_NAME:
            raise Refused(f"a file in it has a name of {len(name):,} characters: {name[:80]}…")
        if _OUTSIDE.match(name) or ".." in PurePosixPath(name).parts:
            raise Refused(f"a file in it would be written outside its folder: {name[:80]}")
    remaining = MAX_UNPACKED_MB * _MB
    for info, name in zip(infos, names):
        if any(map(is_ignored, PurePosixPath(name).parts)) or name.endswith("/"):
            continue
        inside = f"{where}/{name}"
        if file_kind(name) == OTHER:
            yield File(inside, name_only=True)
            continue
        if reason := _rejection_reason(info):
            yield File(inside, refused=reason)
            continue
        if info.file_size > remaining:
            raise Refused(f"its notebooks unpack to more than {MAX_UNPACKED_MB} MB")
        remaining -= info.file_size
        try:
            with archive.open(info) as member:
                yield File(inside, member.read(info.file_size), modified=_modified(info))
        except Exception as error:  # damaged, or made to look so
            yield File(inside, refused=f"cannot be unpacked ({type(error).__name__})")


def _modified(info: zipfile.ZipInfo) -> float:
    with contextlib.suppress(ValueError, OverflowError):  # a zip file can store month 0 and year 2107
        return time.mktime((*info.date_time, 0, 0, -1))
    return 0.0


def _rejection_reason(info: zipfile.ZipInfo) -> str:
    """The reason not to read a member; empty if it is read."""
    if stat.S_ISLNK(info.external_attr >> 16):
        return LINK
    kind = file_kind(info.filename)
    if kind != NOTEBOOK:
        return f"is {'a zip file' if kind == ZIP else 'an archive'} in a zip file, and is not opened"
    if info.flag_bits & 1:
        return "is encrypted"
    if info.file_size > MAX_NOTEBOOK_MB * _MB:
        return f"unpacks to {info.file_size / _MB:,.0f} MB; a notebook may have {MAX_NOTEBOOK_MB}"
    if info.compress_type not in _METHODS:
        return "is compressed by a method other than deflate"
    return ""


def _without_course_files(files: list[File]) -> list[File]:
    """A student who hands in the whole repository also hands in its solutions and lessons. Those do not count."""
    parts = [PurePosixPath(file.where).parts for file in files]
    roots = {each[:i] for each in parts for i, part in enumerate(each[:-1]) if part == "exercises"}

    def is_course_file(each: tuple[str, ...]) -> bool:
        return any(part in ("solutions", "notebooks") and each[:i] in roots for i, part in enumerate(each[:-1]))

    return [file for file, each in zip(files, parts) if file.refused or not is_course_file(each)]
