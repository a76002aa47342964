"""torch's contexts around a call: both APIs cast under autocast, and refuse dual tensors by name."""

from __future__ import annotations

import pytest
import torch

from course_kernels import group_gemm, grouped_mm
from course_kernels.contexts import autocast_dtype, cast, refuse_tangents

CPU = torch.device("cpu")


def test_autocast_is_asked_for_the_devices_kind():
    assert autocast_dtype(CPU) is None
    assert autocast_dtype(torch.device("meta")) is None
    with torch.autocast("cpu", dtype=torch.float16):
        assert autocast_dtype(CPU) == torch.float16


def test_only_wide_operands_are_cast():
    assert cast(torch.ones(2), torch.bfloat16).dtype == torch.bfloat16
    fp8 = torch.ones(2).to(torch.float8_e4m3fn)
    assert cast(fp8, torch.bfloat16) is fp8


def test_both_apis_cast_and_refuse_in_the_same_words():
    a, b, offs = torch.ones(4, 8), torch.ones(1, 8, 8), torch.tensor([4], dtype=torch.int32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert grouped_mm(a, b, offs=offs).dtype == group_gemm([a], [b[0]])[0].dtype == torch.bfloat16
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, a)
        for name, call in (
            ("grouped_mm", lambda: grouped_mm(dual, b, offs=offs)),
            ("group_gemm", lambda: group_gemm([dual], [b[0]])),
        ):
            with pytest.raises(RuntimeError, match=f"{name} has no forward-mode derivative"):
                call()
        refuse_tangents("f", a, None, [1])
