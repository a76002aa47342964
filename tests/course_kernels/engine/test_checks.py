"""Checks that the APIs share; what each API refuses is in its own tests."""

from __future__ import annotations

import pytest
import torch

from course_kernels import deepgemm, grouped_mm
from course_kernels.engine.checks import check_num_sms

A, B, OFFS = torch.zeros(6, 8), torch.zeros(2, 8, 4), torch.tensor([2, 6])


@pytest.mark.parametrize(
    ("num_sms", "error", "words"),
    [(0, ValueError, "num_sms must be at least 1, got 0"), (-4, ValueError, "at least 1, got -4"),
     ("8", TypeError, "num_sms must be an int or None, got str"), (True, TypeError, "got bool"),
     (1.0, TypeError, "got float")],
)  # fmt: skip
def test_a_number_of_sms(num_sms, error, words):
    y = torch.full((2, 3, 4), 7.0)
    half = torch.zeros(2, 3, 8).half()
    with pytest.raises(error, match=words):
        check_num_sms(num_sms)
    with pytest.raises(error, match=words):
        grouped_mm(A, B, offs=OFFS, num_sms=num_sms)
    with pytest.raises(error, match=words):
        deepgemm(half, torch.zeros(2, 4, 8).half(), y, torch.tensor([1, 2]), num_sms=num_sms)
    assert (y == 7).all()
