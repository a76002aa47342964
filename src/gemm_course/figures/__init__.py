"""The course's figures: each function takes data and returns a matplotlib Figure."""

from __future__ import annotations

import sys


def _show_figures_in_notebooks() -> None:
    """Have IPython show a Figure as a picture; by itself it learns to when pyplot makes its first one."""
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython
    from IPython.core.pylabtools import select_figure_formats

    if (shell := get_ipython()) is not None:
        select_figure_formats(shell, {"png"})


_show_figures_in_notebooks()
