"""Every public name's docstring has an example, which runs and shows what comes out."""

from __future__ import annotations

import doctest
import sys

import pytest
import torch

import course_kernels


@pytest.mark.parametrize("name", course_kernels.__all__)
def test_examples_show_what_comes_out(name):
    public = getattr(course_kernels, name)
    module = public if name == "runtime" else sys.modules[public.__module__]
    tests = doctest.DocTestFinder(recurse=False).find(public, name, globs=vars(module) | {"torch": torch, name: public})
    assert sum(len(test.examples) for test in tests) > 0
    runner = doctest.DocTestRunner(verbose=False)
    for test in tests:
        runner.run(test)
    assert runner.failures == 0
