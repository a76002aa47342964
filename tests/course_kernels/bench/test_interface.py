"""Exceptions as lines, and those that say that memory ran out."""

from __future__ import annotations

import torch

from course_kernels.bench.interface import is_out_of_memory, one_line


def test_an_exception_is_one_line():
    assert one_line(RuntimeError("no kernel image\nand a long story")) == "RuntimeError: no kernel image"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 1000))) == len("ValueError: ") + 200


def test_memory_that_ran_out_is_known_behind_another_error():
    short = torch.OutOfMemoryError("Tried to allocate")
    assert is_out_of_memory(short)
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    for how in ("__cause__", "__context__"):
        error = RuntimeError("previous error during capture")
        setattr(error, how, short)
        assert is_out_of_memory(error)
