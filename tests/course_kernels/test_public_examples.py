"""Examples in docstrings of the library run, and show what comes out."""

from __future__ import annotations

import doctest
import importlib
import sys

import pytest
import torch

import course_kernels

WITH_EXAMPLES = {
    "grouped_mm": "course_kernels.packed.api",
    "group_sums": "course_kernels.packed.group_sums",
    "group_gemm": "course_kernels.lists.api",
    "gmm": "course_kernels.gmm.api",
    "grouped_gemm_jagged": "course_kernels.jagged.api",
}


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_show_what_comes_out(name):
    module = importlib.import_module(WITH_EXAMPLES[name])
    names = vars(module) | {"torch": torch}
    assert module is sys.modules[getattr(course_kernels, name).__module__]
    tests = doctest.DocTestFinder(recurse=False).find(getattr(module, name), name, globs=names)
    assert sum(len(test.examples) for test in tests) > 0
    runner = doctest.DocTestRunner(verbose=False)
    for test in tests:
        runner.run(test)
    assert runner.failures == 0
    assert runner.tries > 0
