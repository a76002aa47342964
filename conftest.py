"""Settings for every pytest run, over tests/ and over the notebooks alike."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # Before anything imports NumPy: its threads wait for one another by running, and workers share the cores. What
    # Triton's interpreter multiplies took three times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Each worker begins with another GPU of those that are named; a test may need several.
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    first = int(worker.removeprefix("gw")) % len(gpus)
    if len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first:] + gpus[:first])

# nbval notices a dead kernel only when a cell's time is up, and its default is 2000 s. It has no ini setting
# for that, and in `addopts` its option would stop pytest on a machine without nbval.
NBVAL_DEFAULT_S = 2000
CELL_TIMEOUT_S = 120


def pytest_configure(config):
    if getattr(config.option, "nbval_cell_timeout", None) == NBVAL_DEFAULT_S:
        config.option.nbval_cell_timeout = CELL_TIMEOUT_S


def pytest_report_teststatus(report):
    """A failure says why where it is named: a run that is cut off has no closing report."""
    if report.failed and (crash := getattr(report.longrepr, "reprcrash", None)):
        found = ("failed", "F") if report.when == "call" else ("error", "E")
        return *found, f"{found[0].upper()} ({' '.join(crash.message.split())[:200]})"


def pytest_collection_modifyitems(items):
    """After the last cell of a lesson comes one more: each cell again, in the same kernel (tests/support/again.py)."""
    cells = {item.path: place for place, item in enumerate(items) if type(item).__name__ == "IPyNbCell"}
    for path, place in sorted(cells.items(), key=lambda each: -each[1]):
        last = items[place]
        is_whole = last.cell_num + 1 == sum(cell.cell_type == "code" for cell in last.parent.nb.cells)
        if path.parent == ROOT / "notebooks" and is_whole:
            items.insert(place + 1, _again(last))


def _again(last):
    from nbformat.v4 import new_code_cell

    support = str(ROOT / "tests" / "support")
    source = f"import sys; sys.path.append({support!r}); import again; again.each_cell({str(last.path)!r})"
    return type(last).from_parent(
        last.parent,
        name="each cell again",
        cell_num=last.cell_num + 1,
        cell=new_code_cell(source),
        options=defaultdict(bool, check=True),
    )
