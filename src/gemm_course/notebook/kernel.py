"""The notebook in which this code runs, if any, and its means of display: bold text and Markdown."""

from __future__ import annotations

import os


def shell():
    """IPython's shell in a notebook's kernel; None elsewhere."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    found = get_ipython()
    return found if hasattr(found, "kernel") else None


def cells_run() -> list[str]:
    """The cells that have run in this notebook, as they were written, the latest last."""
    found = shell()
    return [] if found is None else [each[2] for each in found.history_manager.get_range(raw=True)]


def notebook_name() -> str | None:
    """The file name of the open notebook in which this code runs; None if there is none.

    JupyterLab and VS Code pass it to their kernels; programs that execute notebooks do not.
    """
    found = shell()
    if found is None:
        return None
    path = os.environ.get("JPY_SESSION_NAME") or found.user_ns.get("__vsc_ipynb_file__")
    return os.path.basename(path) if path else None


def show_markdown(text: str) -> bool:
    """Show Markdown, if this is a notebook. Returns whether it is one."""
    if shell() is None:
        return False
    from IPython.display import Markdown, display

    display(Markdown(text))
    return True


def bold(text: str) -> str:
    """Text that a notebook shows in bold; elsewhere as it is."""
    return f"\x1b[1m{text}\x1b[0m" if shell() is not None else text
