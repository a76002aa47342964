"""Exercise 04b, tables of pointers, sizes and strides: the tests of any exercise; which launches are harmless."""

from __future__ import annotations

import copy
import random

import pytest

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from gemm_course.exercises.e04b_tables import examine
from gemm_course.exercises.e04b_tables import run as runs
from gemm_course.runner import probes

POINTERS, SIZES, STRIDES = range(3)
FAR = 1 << 30


@pytest.fixture(scope="module")
def laid_out():
    """A watch, and the right tables of its matrices."""
    watch = probes.Watch()
    drawn = runs.matrices(examine.draw(random.Random(0))[0].inputs["problems"], watch)
    pointers = [[each.data_ptr() for each in problem] for problem in drawn]
    sizes = [[*y.shape, x.shape[1]] for x, _, y in drawn]
    return watch, [pointers, sizes, [[*x.stride(), *w.t().stride(), *y.stride()] for x, w, y in drawn]]


@pytest.mark.parametrize(
    ("table", "column", "change", "harmless"),
    [
        (STRIDES, 0, lambda step: step, True),
        (POINTERS, 0, lambda address: address + FAR, False),
        (POINTERS, 2, lambda address: address - FAR, False),
        (POINTERS, 1, lambda address: address + 1, False),
        (POINTERS, 2, lambda address: 0, False),
        (SIZES, 0, lambda extent: runs.LARGEST + 1, False),
        (SIZES, 1, lambda extent: 0, False),
        (SIZES, 2, lambda extent: -extent, False),
        (STRIDES, 0, lambda step: FAR, False),
        (STRIDES, 3, lambda step: -FAR, False),
        (STRIDES, 5, lambda step: 1 << 62, False),
    ],
)
def test_on_a_gpu_nothing_is_launched_that_leaves_the_matrices(laid_out, monkeypatch, table, column, change, harmless):
    watch, tables = laid_out
    tables = copy.deepcopy(tables)
    tables[table][-1][column] = change(tables[table][-1][column])
    assert runs.is_harmless(*tables, watch) == (harmless or table != SIZES), "in the interpreter, if it ends soon"
    monkeypatch.setattr(runs.runtime, "mode", lambda: "gpu")
    assert runs.is_harmless(*tables, watch) == harmless
