"""Files that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: str | Path, data: bytes | str, mode: int | None = None) -> None:
    """Replace a file in one step, so that a reader, or an interruption, never meets half of it.

    Args:
        path: of the file, whose folder exists.
        data: its content; text is stored as UTF-8, with its line ends as they are.
        mode: permissions. By default an existing file keeps its own, and a new one gets what the process gives to new
            files.

    Raises:
        OSError: it cannot be written. The old file is then as it was.
    """
    path = Path(path)
    if mode is None and path.exists():
        mode = path.stat().st_mode & 0o777
    elif mode is None:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
