"""A learner's own bfloat16 kernel in Triton's interpreter, with the course imported."""

from __future__ import annotations

import pytest
import torch

import forked
import gemm_course
from course_kernels import runtime
from gemm_course import bfloat16

pytestmark = pytest.mark.skipif(runtime.mode() != "interpreter", reason="this is about Triton's interpreter")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

N, TYPE = 16, torch.bfloat16


@triton.jit
def elementwise(x_ptr, y_ptr, out_ptr, WHICH: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    if WHICH == "add":
        out = x + y
    elif WHICH == "times a number":
        out = x * 2.5
    elif WHICH == "divide":
        out = x / y
    elif WHICH == "negative":
        out = -x
    elif WHICH == "maximum":
        out = tl.maximum(x, y)
    elif WHICH == "where":
        out = tl.where(x < y, x, y)
    elif WHICH == "clamp":
        out = tl.clamp(x, -1.0, 1.0)
    elif WHICH == "fma":
        out = tl.fma(x, y, x)
    elif WHICH == "abs":
        out = tl.abs(x)
    elif WHICH == "float16":
        out = x.to(tl.float16)
    elif WHICH == "int":
        out = x.to(tl.int32)
    elif WHICH == "float32":
        out = x.to(tl.float32) + y.to(tl.float32)
    elif WHICH == "running sum":
        out = tl.cumsum(x, 0)
    tl.store(out_ptr + at, out)


RIGHT = {
    "add": lambda x, y: x + y,
    "times a number": lambda x, y: x * 2.5,
    "divide": lambda x, y: x.float() / y.float(),  # Triton divides in float32
    "negative": lambda x, y: -x,
    "maximum": torch.maximum,
    "where": torch.minimum,
    "clamp": lambda x, y: x.clamp(-1, 1),
    "fma": lambda x, y: (x.double() * y.double() + x.double()).to(TYPE),
    "abs": lambda x, y: x.abs(),
    "float16": lambda x, y: x.half(),
    "int": lambda x, y: x.int(),
    "float32": lambda x, y: x.float() + y.float(),
    "running sum": lambda x, y: x.float().cumsum(0),
}


def drawn(*shape):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(shape, generator=generator) * 3).to(TYPE) for _ in range(2)]


@pytest.mark.parametrize("which", RIGHT)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_elementwise(which, dtype):
    x, y = drawn(N)
    out = torch.empty(N, dtype=dtype)
    elementwise[(1,)](x, y, out, which, N)
    assert torch.equal(out, RIGHT[which](x, y).to(dtype))


@triton.jit
def product(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    places = at[:, None] * N + at[None, :]
    acc = tl.dot(tl.load(a_ptr + places), tl.load(b_ptr + places))
    tl.store(c_ptr + places, acc.to(c_ptr.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_product_is_summed_in_float32_and_rounded_to_the_nearest(dtype):
    a, b = drawn(N, N)
    c = torch.empty(N, N, dtype=dtype)
    product[(1,)](a, b, c, N)
    torch.testing.assert_close(c, (a.double() @ b.double()).to(dtype), rtol=1e-5 * (dtype == torch.float32), atol=0)


@triton.jit
def reductions(x_ptr, total_ptr, largest_ptr, where_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at[:, None] * N + at[None, :])
    tl.store(total_ptr + at, tl.sum(x, axis=1))
    tl.store(largest_ptr + at, tl.max(x, axis=1))
    tl.store(where_ptr + at, tl.argmax(x, axis=1))


def test_reductions():
    x, _ = drawn(N, N)
    total, largest = (torch.empty(N, dtype=TYPE) for _ in range(2))
    where = torch.empty(N, dtype=torch.int32)
    reductions[(1,)](x, total, largest, where, N)
    assert torch.equal(total, x.float().sum(1).to(TYPE))
    assert torch.equal(largest, x.amax(1))
    assert torch.equal(where, x.float().argmax(1).int())


@triton.jit
def cast(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at))


def test_numbers_are_rounded_as_torch_rounds_them():
    odd = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8, torch.inf, -torch.inf, torch.nan, 3.4e38]
    x, out = torch.tensor(odd), torch.empty(8, dtype=TYPE)
    cast[(1,)](x, out, 8)
    assert torch.equal(out.nan_to_num(7, 1e30, -1e30), x.to(TYPE).nan_to_num(7, 1e30, -1e30))


@triton.jit
def add_atomically(x_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.atomic_add(x_ptr + at, tl.load(x_ptr + at))


def test_an_atomic_update_says_what_to_do():
    with pytest.raises(Exception, match=r"let atomics work on a tensor of torch\.float32"):
        add_atomically[(1,)](torch.ones(N, dtype=TYPE), N)


def test_without_the_repair_it_is_garbage():
    """When this fails, Triton computes it right, and the module can go."""
    bare = (
        "import os; os.environ['TRITON_INTERPRET'] = '1'; import torch, sys, tempfile, pathlib, importlib.util\n"
        "text = 'import triton\\nimport triton.language as tl\\n@triton.jit\\ndef add(x, y):\\n'"
        "'    tl.store(y, tl.load(x) + tl.load(x))\\n'\n"
        "path = pathlib.Path(tempfile.mkdtemp()) / 'k.py'; path.write_text(text)\n"
        "spec = importlib.util.spec_from_file_location('k', path); k = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(k)\n"
        "x = torch.ones(1, dtype=torch.bfloat16); y = x.clone(); k.add[(1,)](x, y); print(y.item())"
    )
    for before, right in (("", False), ("import gemm_course\n", True)):
        done = forked.run(before + bare)
        assert done.returncode == 0, done.stderr
        assert (float(done.stdout) == 2.0) is right


def test_it_is_installed_once():
    bfloat16.install()
    from triton.runtime.interpreter import InterpreterBuilder

    before = InterpreterBuilder.binary_op
    bfloat16.install()
    assert InterpreterBuilder.binary_op is before
    assert gemm_course.__doc__
