"""Bad input to the list API: the argument, what it got, what it wants; and not an element written before."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, GroupGemmPlan, group_gemm, runtime
from course_kernels.testing import assert_exact, integers, poisoned

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

METHODS = ("auto", "naive", "round_robin", "tma")


def matrix(rows, cols, dtype=torch.float16):
    return integers((rows, cols), dtype, device=runtime.device())


def lists():
    """Three good problems; each test spoils a copy."""
    return [matrix(8, 4), matrix(16, 8), matrix(1, 5)], [matrix(4, 6), matrix(8, 16), matrix(5, 2)]


def replaced(group, index, value):
    return [*group[:index], value, *group[index + 1 :]]


A, B = lists()
DENSE = matrix(16, 8)

# What is wrong → (group_A, group_B, options), the error's class, and words that its message has.
OPERAND_ERRORS = {
    "A is a tensor": ((DENSE, B), TypeError, ["group_A", "list or tuple", "Tensor"]),
    "B is a tensor": ((A, DENSE), TypeError, ["group_B", "list or tuple", "Tensor"]),
    "A is None": ((None, B), TypeError, ["group_A", "NoneType"]),
    "A is a generator": (((a for a in A), B), TypeError, ["group_A", "generator"]),
    "a number in A": ((replaced(A, 1, 3.0), B), TypeError, ["group_A[1]", "torch.Tensor", "float"]),
    "a list in B": ((A, replaced(B, 2, [[1.0]])), TypeError, ["group_B[2]", "torch.Tensor", "list"]),
    "None in B": ((A, replaced(B, 0, None)), TypeError, ["group_B[0]", "NoneType"]),
    "a vector in A": ((replaced(A, 1, DENSE[0]), B), ValueError, ["group_A[1]", "2-D", "(8,)"]),
    "a batch in B": ((A, replaced(B, 1, DENSE[None])), ValueError, ["group_B[1]", "2-D", "(1, 16, 8)"]),
    "a scalar in B": ((A, replaced(B, 1, DENSE[0, 0])), ValueError, ["group_B[1]", "2-D", "()"]),
    "lengths": ((A, B[:2]), ValueError, ["same length", "3", "2"]),
    "no B at all": ((A, []), ValueError, ["same length", "3", "0"]),
    "K": ((replaced(A, 1, matrix(16, 7)), B), ValueError, ["problem 1", "K = 7", "8 rows", "(16, 7)", "(8, 16)"]),
    "weights (N, K)": ((A, replaced(B, 2, matrix(4, 5))), ValueError, ["problem 2", "pass group_B[2].mT"]),
    "last K": ((A, replaced(B, 2, matrix(4, 2))), ValueError, ["problem 2", "K = 5", "4 rows"]),
    "K of 0 and 1": ((replaced(A, 0, matrix(8, 0)), B), ValueError, ["problem 0", "K = 0", "4 rows"]),
    "integers": (([a.int() for a in A], [b.int() for b in B]), TypeError, ["group_A[0]", "int32"]),
    "float64": (([a.double() for a in A], [b.double() for b in B]), TypeError, ["group_A[0]", "float64"]),
    "complex": (([a.to(torch.complex64) for a in A], B), TypeError, ["group_A[0]", "complex64"]),
    "float8_e5m2": (([a.to(torch.float8_e5m2) for a in A], B), TypeError, ["group_A[0]", "float8_e5m2"]),
    "mixed inside A": ((replaced(A, 2, A[2].float()), B), TypeError, ["group_A[2]", "float16", "float32"]),
    "A and B differ": ((A, [b.bfloat16() for b in B]), TypeError, ["group_B[0]", "float16", "bfloat16"]),
    "mixed inside B": ((A, replaced(B, 1, B[1].bfloat16())), TypeError, ["group_B[1]", "bfloat16"]),
    "meta in A": ((replaced(A, 1, A[1].to("meta")), B), ValueError, ["group_A[1]", "device", "meta"]),
    "meta in B": ((A, replaced(B, 0, B[0].to("meta"))), ValueError, ["group_B[0]", "device", "meta"]),
    "all meta": (([a.to("meta") for a in A], [b.to("meta") for b in B]), ValueError, ["meta"]),
    "sparse": ((A, replaced(B, 1, B[1].float().to_sparse())), TypeError, ["group_B[1]", "dense", "sparse_coo"]),
    "too long": (
        ([torch.empty(1, 1, dtype=torch.float16).expand(2**31, 1)], [matrix(1, 1)]),
        ValueError,
        ["group_A[0]", "2**31"],
    ),
    # Its last block would be counted past 2**31, which 32 bits hold as a negative number.
    "too long for its last block": (
        ([matrix(1, 1).expand(1, 2**31 - 64)], [matrix(1, 1).expand(2**31 - 64, 1)]),
        ValueError,
        ["group_A[0]", "2**31 - 2**16"],
    ),
}
OPTION_ERRORS = {
    "method": (dict(method="fast"), ValueError, ["method", "'fast'", "round_robin"]),
    "method None": (dict(method=None), ValueError, ["method", "None"]),
    "precision": (dict(precision="tf16"), ValueError, ["precision", "'tf16'", "ieee"]),
    "out_dtype": (dict(out_dtype=torch.float64), TypeError, ["out_dtype", "float64"]),
    "out_dtype int": (dict(out_dtype=torch.int32), TypeError, ["out_dtype", "int32"]),
    "out_dtype name": (dict(out_dtype="float16"), TypeError, ["out_dtype", "'float16'"]),
    "config": (dict(config=(64, 64, 64)), TypeError, ["config", "GemmConfig", "tuple"]),
}


def blank():
    """Outputs of the right kind, each inside canaries: (views, what verifies that nothing at all was written)."""
    views, checks = zip(*(poisoned((a.shape[0], b.shape[1]), device=runtime.device()) for a, b in zip(*lists())))

    def untouched():
        for view, check in zip(views, checks):
            check()
            assert view.isnan().all(), "an output was written before the error"

    return list(views), untouched


def assert_message(caught, words):
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"


@pytest.mark.parametrize("what", OPERAND_ERRORS)
@pytest.mark.parametrize("function", [group_gemm, GroupGemmPlan])
def test_operands(function, what):
    (group_A, group_B), error, words = OPERAND_ERRORS[what]
    out, untouched = blank()
    with pytest.raises(error) as caught:
        function(group_A, group_B, method="round_robin", out=out)
    # All on another device is found when the outputs, which are on the usual one, are looked at.
    assert_message(caught, words)
    untouched()


@pytest.mark.parametrize("what", OPTION_ERRORS)
@pytest.mark.parametrize("function", [group_gemm, GroupGemmPlan])
def test_options(function, what):
    options, error, words = OPTION_ERRORS[what]
    out, untouched = blank()
    with pytest.raises(error) as caught:
        function(*lists(), out=out, **options)
    assert_message(caught, words)
    untouched()


@pytest.mark.parametrize("programs", [0, -1, 2.0, "all"])
def test_programs(programs):
    out, untouched = blank()
    with pytest.raises(ValueError) as caught:
        GroupGemmPlan(*lists(), out=out, programs=programs)
    assert_message(caught, ["programs", "positive integer", repr(programs)])
    untouched()


def test_meta_tensors_reach_no_kernel():
    a, b = torch.empty(8, 4, device="meta"), torch.empty(4, 16, dtype=torch.float32, device="meta")
    (c,) = group_gemm([a], [b], out_dtype=torch.float16)
    assert (c.device.type, c.shape, c.dtype) == ("meta", (8, 16), torch.float16)
    with pytest.raises(TypeError, match="method must be 'auto' for meta tensors"):
        group_gemm([a], [b], method="round_robin")
    with pytest.raises(ValueError, match="out must be None for meta tensors"):
        group_gemm([a], [b], out=[c.float()])
    with pytest.raises(ValueError, match="group_A must have memory that kernels can read, got meta tensors"):
        GroupGemmPlan([a], [b])


@pytest.mark.parametrize(
    "dtype, query, capability",
    [(torch.float8_e4m3fn, "supports_fp8", "8.9"), (torch.bfloat16, "supports_bf16", "8.0")],
    ids=str,
)
def test_type_that_the_hardware_does_not_multiply(monkeypatch, dtype, query, capability):
    monkeypatch.setattr(runtime, query, lambda device: False)
    a = matrix(16, 16, dtype)
    out, untouched = blank()
    with pytest.raises(TypeError) as caught:
        group_gemm([a], [a], method="round_robin", out=out[:1])
    assert_message(
        caught,
        ["group_A", str(dtype).removeprefix("torch."), f"capability {capability} or newer", "Convert the operands to"],
    )
    untouched()


def test_tf32_without_the_hardware(monkeypatch):
    monkeypatch.setattr(runtime, "supports_tf32", lambda device: False)
    a = matrix(16, 16, torch.float32)
    with pytest.raises(ValueError, match="precision must be 'ieee' on this GPU, got 'tf32'"):
        group_gemm([a], [a], method="round_robin", precision="tf32")
    assert_exact(group_gemm([a], [a], method="round_robin")[0], a, a)
    half = a.half()  # precision is a matter of float32 alone
    assert_exact(group_gemm([half], [half], method="round_robin", precision="tf32")[0], half, half)


# ---- out


def spoiled_out(what):
    out, untouched = blank()
    extra = matrix(8, 6)
    a, b = lists()
    cases = {
        "a tensor": (out[0], TypeError, ["out", "list or tuple"]),
        "a number": (replaced(out, 1, 1), TypeError, ["out[1]", "torch.Tensor", "int"]),
        "length": (out[:2], ValueError, ["out", "length", "3", "2"]),
        "shape": (replaced(out, 1, matrix(16, 15)), ValueError, ["out[1]", "(16, 16)", "(16, 15)"]),
        "transposed shape": (replaced(out, 0, matrix(6, 8)), ValueError, ["out[0]", "(8, 6)", "(6, 8)"]),
        "vector": (replaced(out, 2, matrix(1, 2)[0]), ValueError, ["out[2]", "2-D"]),
        "dtype": (replaced(out, 2, out[2].float()), TypeError, ["out[2]", "float16", "float32"]),
        "device": (replaced(out, 0, out[0].to("meta")), ValueError, ["out[0]", "meta"]),
        "gradient": (replaced(out, 0, extra.clone().requires_grad_()), ValueError, ["out[0]", "gradient", "detach"]),
        "expanded": (replaced(out, 0, extra[:1].expand(8, 6)), ValueError, ["out[0]", "share memory", "(0, 1)"]),
        "overlapping rows": (
            replaced(out, 0, matrix(1, 64).view(-1).as_strided((8, 6), (5, 1))),
            ValueError,
            ["out[0]", "share memory", "(5, 1)"],
        ),
    }
    return (*cases[what], untouched, a, b)


@pytest.mark.parametrize(
    "what",
    [
        "a tensor", "a number", "length", "shape", "transposed shape", "vector", "dtype", "device", "gradient",
        "expanded", "overlapping rows",
    ],
)  # fmt: skip
@pytest.mark.parametrize("function", [group_gemm, GroupGemmPlan])
def test_out(function, what):
    out, error, words, untouched, group_A, group_B = spoiled_out(what)
    with pytest.raises(error) as caught:
        function(group_A, group_B, method="round_robin", out=out)
    assert_message(caught, words)
    untouched()


@pytest.mark.parametrize("method", METHODS)
def test_out_that_shares_memory(method):
    a, b, c = matrix(16, 16), matrix(16, 16), matrix(16, 16)
    kept = [t.clone() for t in (a, b, c)]
    pool = torch.zeros(400, dtype=torch.float16, device=runtime.device())
    first, second = pool[:256].view(16, 16), pool[100:356].view(16, 16)
    with pytest.raises(ValueError, match=r"out\[0\] shares memory with group_A\[0\]"):
        group_gemm([a], [b], method=method, out=[a])
    with pytest.raises(ValueError, match=r"out\[0\] shares memory with group_A\[1\]"):
        group_gemm([b, a], [b, b], method=method, out=[a, c])
    with pytest.raises(ValueError, match=r"out\[0\] shares memory with group_B\[0\]"):
        group_gemm([a], [b.t()], method=method, out=[b])
    with pytest.raises(ValueError, match=r"out\[\d\] shares memory with out\[\d\]"):
        group_gemm([a, a], [b, b], method=method, out=[c, c])
    with pytest.raises(ValueError, match=r"shares memory"):
        group_gemm([a, a], [b, b], method=method, out=[first, second])
    # One begins inside the other, whichever of them it is.
    for operand, out in ((second, first), (first, second)):
        with pytest.raises(ValueError, match=r"out\[0\] shares memory with group_A\[0\]"):
            group_gemm([operand], [b], method=method, out=[out])
    assert all(torch.equal(t, k) for t, k in zip((a, b, c), kept))
    assert not pool.any()


def test_out_with_gaps_that_begins_where_an_operand_does():
    pool = torch.zeros(16, 40, dtype=torch.float16, device=runtime.device())
    first, second, third = pool[:, :8], pool[:, 16:32], pool[:, 32:]
    with pytest.raises(ValueError, match=r"out\[0\] shares memory with group_A\[0\]"):
        group_gemm([second], [matrix(16, 16)], method="round_robin", out=[second])
    with pytest.raises(ValueError, match=r"out\[1\] shares memory with out\[0\]"):
        group_gemm([second] * 2, [matrix(16, 8)] * 2, method="round_robin", out=[first, first])
    assert not pool.any()
    second.fill_(1)  # columns that interlock are no overlap
    group_gemm([second] * 2, [torch.ones_like(second)[:, :8]] * 2, method="round_robin", out=[first, third])
    assert (first == 16).all()
    assert (third == 16).all()


def test_out_of_an_empty_list():
    with pytest.raises(TypeError, match="out must be a list or tuple"):
        group_gemm([], [], out=3)
    with pytest.raises(ValueError, match="length of group_A, 0, got 1"):
        group_gemm([], [], out=[matrix(1, 1)])
    assert group_gemm([], [], out=[]) == []


def test_neighbours_in_one_buffer_do_not_overlap():
    pool = torch.zeros(3 * 256, dtype=torch.float16, device=runtime.device())
    a, b, c = (pool[i * 256 : (i + 1) * 256].view(16, 16) for i in range(3))
    a.fill_(1), b.fill_(2)
    group_gemm([a], [b], out=[c], method="round_robin", config=GemmConfig(16, 16, 16))
    assert torch.equal(c, torch.full_like(c, 32))


# ---- gradients


def test_out_with_a_gradient():
    group_A, group_B = lists()
    group_B[1].requires_grad_()
    out, untouched = blank()
    with pytest.raises(ValueError, match="out cannot be given when an operand requires a gradient"):
        group_gemm(group_A, group_B, out=out)
    untouched()
    with torch.no_grad():
        group_gemm(group_A, group_B, out=out)
    assert not any(c.isnan().any() for c in out)


@pytest.mark.parametrize("method", METHODS)
def test_gradient_of_fp8(method):
    a = matrix(16, 16, torch.float8_e4m3fn).requires_grad_()
    with pytest.raises(TypeError, match="float8_e4m3fn have no gradient"):
        group_gemm([a], [a], method=method)
