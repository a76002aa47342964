"""Outputs as they come back to the judge, made without running a kernel."""

from __future__ import annotations

import torch

from course_kernels import testing
from gemm_course.judging.case import Written
from gemm_course.runner import probes


def written(shape, spilled=(), probed=False, unwritten=()):
    """A right matrix of ones, and stores to (row, column) around it: carried out, or stopped and counted by a probe.

    What is `unwritten` of the matrix keeps its canary.
    """
    view, _ = testing.poisoned(shape, torch.float32, probes.MARGIN)
    buffer = torch.empty(0).set_(view.untyped_storage())
    counts = torch.zeros(len(buffer), dtype=torch.int32)
    down, across = view.stride()
    for row, col in spilled:
        place = view.storage_offset() + row * down + col * across
        if probed:
            counts[place] += 1
        else:
            buffer[place] = 1.0
    canaries = [(place, view[place].clone()) for place in unwritten]
    view.fill_(1.0)
    for place, canary in canaries:
        view[place] = canary
    return Written(
        {"name": "C", "buffer": buffer, "shape": list(shape), "strides": [down, across], "counts": counts,
         "offset": view.storage_offset(), "writers": torch.full_like(counts, -1)}
    )  # fmt: skip


def block(rows, cols):
    return [(row, col) for row in rows for col in cols]
