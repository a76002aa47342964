"""Each context of torch around a call is recognised."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

from course_kernels import group_gemm, grouped_mm
from course_kernels.contexts import (
    REVERSE,
    autocast_dtype,
    cast,
    has_memory,
    is_forward_mode,
    is_plain,
    is_traced,
    refuse_tangents,
    unwrapped,
    wants_function,
    wants_grad,
)
from course_kernels.dtypes import OUT_DTYPES
from public_calls import calls


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


def test_tensors_in_a_dual_level_are_not_plain():
    plain, forward = torch.ones(2), torch.autograd.forward_ad
    with forward.dual_level():
        assert is_forward_mode()
        assert not is_plain(plain)
        assert wants_function()
        refuse_tangents("f", plain, None, [1], instead=REVERSE)
        dual = forward.make_dual(plain, plain)
        with pytest.raises(RuntimeError, match=r"f has no forward-mode derivative, .*torch\.func\.grad\), or unpack"):
            refuse_tangents("f", None, dual, instead=REVERSE)
        with pytest.raises(RuntimeError, match=r"f has no derivatives, and .* of forward-mode differentiation: unpack"):
            refuse_tangents("f", None, dual, instead=None)
    assert not is_forward_mode()
    assert not wants_function()


def test_functions_are_for_transforms_and_operators_for_functionalize():
    plain, seen = torch.ones(2), {}

    def note(name, result=None):
        return lambda x: (seen.update({name: wants_function()}), x.sum())[1]

    torch.func.grad(note("grad"))(plain)
    torch.func.functionalize(torch.func.grad(note("grad inside")))(plain)
    torch.func.grad(torch.func.functionalize(note("functionalize inside")))(plain)
    torch.func.functionalize(torch.func.vmap(note("vmap inside")))(plain[None])
    torch.func.jvp(note("jvp"), (plain,), (plain,))
    torch.func.jvp(lambda x: torch.func.jvp(note("jvp inside"), (x,), (x,)), (plain,), (plain,))
    assert seen == {
        "grad": True,
        "grad inside": False,
        "functionalize inside": False,
        "vmap inside": False,
        "jvp": True,
        "jvp inside": False,
    }


def test_tensors_of_a_transform_that_has_ended_are_unwrapped():
    left, plain = [], torch.ones(2)
    torch.func.grad(lambda x: (left.append(x), x.sum())[1])(plain)
    with pytest.raises((RuntimeError, NotImplementedError)):
        left[0].untyped_storage()
    assert unwrapped(left[0]).data_ptr() == plain.data_ptr()
    assert unwrapped(plain) is plain
    assert unwrapped(None) is None


def test_kernels_cannot_read_tensors_whose_class_computes_nor_meta_tensors():
    class Named(torch.Tensor):
        pass

    plain = torch.ones(2)
    assert not any(map(has_memory, (TwoTensor(plain, plain), plain.to("meta"))))
    assert all(map(has_memory, (plain, torch.nn.Parameter(plain), plain.as_subclass(Named))))


def test_programs_that_are_traced():
    seen = [is_traced()]
    make_fx(lambda x: (seen.append(is_traced()), x + 1)[1])(torch.ones(2))
    assert seen == [False, True]


@pytest.mark.parametrize("name", ["scaled_grouped_mm rows torch", "deepgemm torch"])
def test_functions_without_gradients_name_no_derivative_that_they_had(name):
    forward, call = torch.autograd.forward_ad, next(each for each in calls() if each.name == name)
    operand = next(key for key, each in call.arguments.items() if getattr(each, "dtype", None) in OUT_DTYPES)
    with forward.dual_level():
        dual = forward.make_dual(*[call.arguments[operand].clone() for _ in range(2)])
        with pytest.raises(RuntimeError, match="has no derivatives, and an operand is a dual tensor") as refused:
            call.function(**call.arguments | {operand: dual})
    assert "torch.func" not in str(refused.value)


def test_both_apis_cast_alike():
    a, b, offs = torch.ones(4, 8), torch.ones(1, 8, 8), torch.tensor([4], dtype=torch.int32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert grouped_mm(a, b, offs=offs).dtype == group_gemm([a], [b[0]])[0].dtype == torch.bfloat16
