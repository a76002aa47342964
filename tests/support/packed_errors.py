"""Calls that are right but for one argument."""

from __future__ import annotations

import torch

from course_kernels import runtime
from course_kernels.testing import integers

BACKENDS = ("auto", "torch", "triton")


DEVICE = runtime.device()


def matrix(*shape, dtype=torch.float16):
    return integers(shape, dtype, device=DEVICE)


def ends(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


A, B, OFFS = matrix(12, 8), matrix(2, 8, 6), ends(5, 12)  # mode "m", the result is (12, 6)


def good(**changes):
    return dict(mat_a=A, mat_b=B, offs=OFFS) | changes


def assert_message(caught, words):
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"


FP8 = torch.float8_e4m3fn
