"""Settings for every pytest run, over tests/ and over the notebooks alike."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before anything imports NumPy: its threads wait for one another by running, and workers share the cores. What
    # Triton's interpreter multiplies took three times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# nbval notices a dead kernel only when a cell's time is up, and its default is 2000 s. It has no ini setting
# for that, and in `addopts` its option would stop pytest on a machine without nbval.
NBVAL_DEFAULT_S = 2000
CELL_TIMEOUT_S = 120


def pytest_configure(config):
    if getattr(config.option, "nbval_cell_timeout", None) == NBVAL_DEFAULT_S:
        config.option.nbval_cell_timeout = CELL_TIMEOUT_S
