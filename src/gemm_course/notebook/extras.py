"""Packages that a lesson needs beyond the course's own: one sentence names a missing one."""

from __future__ import annotations

import importlib.util

__all__ = ["MissingExtra", "need"]


class MissingExtra(ImportError):
    """A package is missing. In a notebook, its message stands alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:  # IPython's name
        return [str(self)]


def need(module: str, extra: str) -> None:
    """Check that a package is there, without importing it.

    Args:
        module: its name for ``import``.
        extra: the course's extra that installs it.

    Raises:
        MissingExtra: it is not there; the message says what to install.
    """
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(
            f"This lesson needs the package {module}: run `pip install '.[{extra}]'` in the course's folder with the "
            "Python of this notebook, and restart the kernel."
        )
