"""The interpreter prepares the language once a launch, computes the same, and leaves everything as it was."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from course_kernels import runtime
from gemm_course.runner import interpreter

if runtime.mode() != "interpreter" or runtime.interpreter_problem():
    pytest.skip("this is about Triton's interpreter", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime import interpreter as tritons


@triton.jit
def twice(x):
    return x + x


@triton.jit
def add_kernel(x_ptr, FAILS: tl.constexpr):
    places = x_ptr + tl.arange(0, 8)
    x = twice(twice(tl.load(places)))
    tl.static_assert(not FAILS)
    tl.store(places, twice(x))


@triton.jit
def whole_numbers_kernel(x_ptr):
    places = x_ptr + tl.arange(0, 4)
    x = tl.load(places)
    tl.store(places, (x + x) * x - x)


@triton.jit
def scalar_conditions_kernel(x_ptr, count, G):
    places = tl.arange(0, 8)
    here = tl.program_id(0) < G
    x = tl.load(x_ptr + places, mask=(places < count) & here, other=0.0)
    tl.store(x_ptr + places, x + 1, mask=here)


@pytest.fixture
def prepared(monkeypatch):
    """How often the language is gone through."""
    count = []
    genuine = getattr(tritons._patch_lang, "genuine", tritons._patch_lang)
    monkeypatch.setattr(tritons, "_patch_lang", lambda fn: count.append(fn) or genuine(fn))
    interpreter.prepare_once()
    interpreter.prepare_once()  # a second time changes nothing
    return count


def test_once_a_launch(prepared):
    x = torch.arange(8.0)
    for _ in range(2):
        add_kernel[(3,)](x, False)
    assert torch.equal(x, torch.arange(8.0) * 8.0**6)
    assert len(prepared) == 2


def test_types_are_looked_up_once_and_are_those_of_triton(prepared, monkeypatch):
    monkeypatch.setattr(tritons, "_patch_lang", tritons._patch_lang.genuine)
    count, table = [], getattr(tritons._get_np_dtype, "make_table", tritons._get_np_dtype)
    monkeypatch.setattr(tritons, "_get_np_dtype", lambda tt_dtype: count.append(tt_dtype) or table(tt_dtype))
    interpreter.prepare_once()
    scalars = [getattr(tl, name) for name in ("int1", "int8", "uint64", "float16", "bfloat16", "float32", "float8e5")]
    for each in (*scalars, *scalars, tl.pointer_type(tl.float32), tl.block_type(tl.int64, [8])):
        assert tritons._get_np_dtype(each) == table(each)
    assert len(count) == len(scalars) + 2


def test_shapes_are_described_once_and_are_those_of_triton(monkeypatch):
    described = []
    for made in (tl.block_type, tl.tensor):
        genuine = getattr(made.__init__, "genuine", made.__init__)
        monkeypatch.setattr(
            made, "__init__", lambda self, *given, f=genuine: described.append(given) or f(self, *given)
        )
    genuine_type, genuine_block = tl.block_type.__init__, tl.tensor.__init__
    kinds = [(tl.float32, [4, 2]), (tl.float32, tl.tuple([4, 2])), (tl.int1, [8]), (tl.pointer_type(tl.int8), [8])]

    def blocks():
        return [tl.tensor(None, each) for each in (tl.int64, *(tl.block_type(*kind) for kind in kinds))]

    wanted = blocks()
    interpreter._remember_shapes(tl.core)
    interpreter._remember_shapes(tl.core)  # a second time changes nothing
    assert (tl.block_type.__init__.genuine, tl.tensor.__init__.genuine) == (genuine_type, genuine_block)
    for most in (3 + 4, 0):  # types of different text, and a block of each and a scalar; then nothing
        described.clear()
        found = blocks()
        assert len(described) == most
        for one, other in zip(found, wanted):
            assert (str(one.type), one.type, one.dtype) == (str(other.type), other.type, other.dtype)
            assert getattr(one.type, "numel", 1) == getattr(other.type, "numel", 1)
            assert ([each.value for each in one.shape], one.numel.value) == (
                [each.value for each in other.shape], other.numel.value
            )  # fmt: skip


@pytest.mark.parametrize("shape", [[], [3], [4.0, 2], (4, 2), [2**21]], ids=str)
def test_a_shape_that_triton_refuses_is_refused_still(prepared, shape):
    tl.block_type(tl.float32, [4, 2])
    said = []
    for make in (tl.block_type.__init__.genuine, tl.block_type.__init__):
        with pytest.raises((AssertionError, TypeError, ValueError)) as error:
            make(tl.block_type.__new__(tl.block_type), tl.float32, shape)
        said.append((error.type, str(error.value)))
    assert said[0] == said[1]


def test_nothing_is_computed_for_an_assertion_that_is_not_made(monkeypatch):
    """Integers are checked for overflow in debug mode only; without it, a sum of blocks is one addition."""
    builder, added = tritons.interpreter_builder, []
    genuine = tritons.InterpreterBuilder.binary_op
    monkeypatch.setattr(
        tritons.InterpreterBuilder, "binary_op",
        lambda self, x, y, op: added.append((op.__name__, x.data.dtype)) or genuine(self, x, y, op),
    )  # fmt: skip
    results = []
    for sanitized in (True, False):
        monkeypatch.setattr(builder, "options", tritons.InterpreterOptions())
        if not sanitized:
            interpreter.prepare_once()
        added.clear()
        x = torch.tensor([2**31 - 1, -(2**31), 5, -1], dtype=torch.int32)
        whole_numbers_kernel[(1,)](x)
        results.append(x.tolist())
        assert ("add", "int64") in added or not sanitized, "Triton has changed: is this still needed?"
    assert added == [("add", "int32"), ("multiply", "int32"), ("subtract", "int32")]
    assert results[0] == results[1]
    assert builder.options == dataclasses.replace(tritons.InterpreterOptions(), sanitize_overflow=False, debug=True)


def test_in_debug_mode_overflow_is_an_error_still(monkeypatch):
    monkeypatch.setattr(tritons.interpreter_builder, "options", tritons.InterpreterOptions(debug=True))
    interpreter.prepare_once()
    with pytest.raises(tritons.InterpreterError, match="overflow"):
        whole_numbers_kernel[(1,)](torch.full((4,), 2**31 - 1, dtype=torch.int32))


def test_masks_of_scalar_conditions(monkeypatch):
    masks, builder = [], tritons.InterpreterBuilder
    monkeypatch.setattr(builder, "create_splat", builder.create_splat)  # put back after the test
    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        genuine = getattr(builder, name)
        monkeypatch.setattr(
            builder, name, lambda self, *args, f=genuine, i=place: masks.append(args[i].data.dtype) or f(self, *args)
        )
    interpreter.accept_scalar_masks()
    interpreter.accept_scalar_masks()  # a second time changes nothing
    assert not hasattr(builder.create_splat.genuine, "genuine")
    x = torch.arange(8.0)
    scalar_conditions_kernel[(2,)](x, 3, 1)
    assert x.tolist() == [1, 2, 3, 1, 1, 1, 1, 1]
    assert masks == [bool] * 4


def test_a_kernel_that_fails_leaves_the_language_as_it_was(prepared):
    load = tl.load
    with pytest.raises(tritons.InterpreterError):
        add_kernel[(1,)](torch.zeros(8), True)
    assert tl.load is load
    add_kernel[(1,)](torch.zeros(8), False)
    assert len(prepared) == 2


def test_an_interpreter_of_another_make_is_left_alone(monkeypatch):
    monkeypatch.delattr(tritons, "_LangPatchScope")
    monkeypatch.setattr(tritons, "_patch_lang", print)
    monkeypatch.delattr(tritons, "interpreter_semantic")
    monkeypatch.delattr(tritons.InterpreterBuilder, "create_atomic_cas")
    before = tritons.FunctionRewriter._compile_and_exec, tritons.InterpretedFunction.run
    interpreter.prepare_once()
    interpreter.keep_its_globals()
    interpreter.stay_in_tensors()
    assert tritons._patch_lang is print
    assert (tritons.FunctionRewriter._compile_and_exec, tritons.InterpretedFunction.run) == before


def test_a_launch_adds_nothing_to_a_kernels_globals_but_what_it_needs(monkeypatch):
    monkeypatch.setattr(tritons.FunctionRewriter, "_compile_and_exec", tritons.FunctionRewriter._compile_and_exec)
    monkeypatch.setattr(tritons.InterpretedFunction, "rewritten_fn", {})
    for name in vars(tritons).keys() & globals().keys() - {"tl", "triton"}:  # of earlier launches
        if globals()[name] is getattr(tritons, name) and not name.startswith("__"):
            monkeypatch.delitem(globals(), name)
    interpreter.keep_its_globals()
    before, x = {*globals()}, torch.arange(8.0)
    add_kernel[(1,)](x, False)
    assert torch.equal(x, torch.arange(8.0) * 8)
    assert {*globals()} - before == {"interpreter_semantic"}


@triton.jit
def at_an_address(there, offset):
    place = there.to(tl.int64).to(tl.pointer_type(tl.int64)) + offset
    tl.store(place, tl.load(place) + 1)


@triton.jit
def exchange_at(there, offset):
    tl.atomic_cas(there.to(tl.int64).to(tl.pointer_type(tl.int64)) + offset, 5, 7)


@triton.jit
def add_at(there, offset):
    tl.atomic_add(there.to(tl.int64).to(tl.pointer_type(tl.int64)) + offset, 1)


@triton.jit
def by_descriptor(there, ROWS: tl.constexpr):
    table = tl.make_tensor_descriptor(there, [ROWS, 4], [4, 1], [4, 4])
    table.store([0, 0], table.load([0, 0]) + 1)


@triton.jit
def masked(there):
    place = there + tl.arange(0, 8)
    tl.store(place, tl.load(place, mask=tl.arange(0, 8) < 3) + 1, mask=tl.arange(0, 8) < 3)


@pytest.fixture
def bounded(monkeypatch):
    for name in interpreter.ACCESSES:
        monkeypatch.setattr(tritons.InterpreterBuilder, name, getattr(tritons.InterpreterBuilder, name))
    monkeypatch.setattr(tritons.InterpretedFunction, "run", tritons.InterpretedFunction.run)
    interpreter.stay_in_tensors()
    interpreter.stay_in_tensors()  # a second time changes nothing


@pytest.mark.parametrize("kernel", [at_an_address, exchange_at, add_at])
def test_a_kernel_reaches_the_memory_of_its_tensors_alone(bounded, kernel):
    x = torch.full((8,), 5, dtype=torch.int64)
    kernel[(1,)](x[4:], -1)  # the tensor's memory is that of all of x
    assert x[3] > 5
    for there, offset in ((x, 8), (x, -1), (x.data_ptr(), 0)):
        with pytest.raises(tritons.InterpreterError, match="reaches the tensors that its launch is given"):
            kernel[(1,)](there, offset)
    assert x.sum() == x[3] + 7 * 5


def test_masks_and_descriptors_stay_in_the_tensors_of_a_launch_too(bounded):
    x = torch.zeros(3)
    masked[(1,)](x)
    assert x.tolist() == [1, 1, 1]
    x = torch.zeros(4, 4)
    by_descriptor[(1,)](x, 3)
    assert x.sum(1).tolist() == [4, 4, 4, 0]
    with pytest.raises(tritons.InterpreterError, match="reaches the tensors"):
        by_descriptor[(1,)](torch.zeros(2, 4), 3)
