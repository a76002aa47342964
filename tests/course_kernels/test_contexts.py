"""torch's contexts around a call: both APIs cast under autocast, and refuse dual tensors by name."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_kernels import group_gemm, grouped_mm
from course_kernels.contexts import autocast_dtype, cast, is_plain, refuse_tangents, wants_grad


def test_autocast_is_asked_for_the_devices_kind():
    assert autocast_dtype("cpu") is None
    assert autocast_dtype("meta") is None
    with torch.autocast("cpu", dtype=torch.float16):
        assert autocast_dtype("cpu") == torch.float16


def test_only_wide_operands_are_cast():
    assert cast(torch.ones(2), torch.bfloat16).dtype == torch.bfloat16
    fp8 = torch.ones(2).to(torch.float8_e4m3fn)
    assert cast(fp8, torch.bfloat16) is fp8


def test_plain_tensors_are_those_that_nothing_of_torchs_watches():
    plain = torch.ones(2)
    assert is_plain(plain, torch.nn.Parameter(plain), None)
    assert not is_plain(plain, plain.to("meta"))
    with FlopCounterMode(display=False):
        assert not is_plain(plain)
    seen = []
    torch.func.vmap(lambda x: (seen.append(is_plain(plain)), x)[1])(plain)
    assert seen == [False]


def test_gradients_are_wanted_of_who_requires_them_where_they_are_recorded():
    wanted = torch.ones(2, requires_grad=True)
    assert wants_grad(None, wanted)
    assert not wants_grad(wanted.detach(), None, [1])
    with torch.no_grad():
        assert not wants_grad(wanted)


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
