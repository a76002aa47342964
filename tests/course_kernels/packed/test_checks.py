"""Bad input to grouped_mm and scaled_grouped_mm: the argument, what it got, what it wants; not an element written."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_kernels import grouped_mm, runtime
from course_kernels.engine import plans as execute
from course_kernels.testing import poisoned
from packed_errors import BACKENDS, DEVICE, FP8, OFFS, A, B, assert_message, ends, good, matrix

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


A3, B2, WIDE, LONG = matrix(2, 6, 8), matrix(8, 12), matrix(6, 12), matrix(12, 8)  # for the other modes


# What is wrong → arguments, the error's class, and words that its message has.
ERRORS = {
    "A is a list": (good(mat_a=[A]), TypeError, ["mat_a", "torch.Tensor", "list"]),
    "A is None": (good(mat_a=None), TypeError, ["mat_a", "NoneType"]),
    "B is a number": (good(mat_b=3.0), TypeError, ["mat_b", "torch.Tensor", "float"]),
    "A is a vector": (good(mat_a=A[0]), ValueError, ["mat_a", "2-D or 3-D", "(8,)"]),
    "A is 4-D": (good(mat_a=A[None, None]), ValueError, ["mat_a", "2-D or 3-D", "(1, 1, 12, 8)"]),
    "B is a vector": (good(mat_b=B[0, 0]), ValueError, ["mat_b", "2-D or 3-D", "(6,)"]),
    "A is sparse": (good(mat_a=A.float().to_sparse()), TypeError, ["mat_a", "dense", "sparse_coo"]),
    "B is nested": (
        good(mat_b=torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(2, 2)])),
        TypeError,
        ["mat_b", "dense", "nested"],
    ),
    "int operands": (good(mat_a=A.int(), mat_b=B.int()), TypeError, ["mat_a", "float16", "int32"]),
    "float64": (good(mat_a=A.double(), mat_b=B.double()), TypeError, ["mat_a", "float64"]),
    "complex": (good(mat_a=A.to(torch.complex64)), TypeError, ["mat_a", "complex64"]),
    "fp8": (good(mat_a=A.to(FP8), mat_b=B.to(FP8)), TypeError, ["mat_a", "float8_e4m3fn", "scaled_grouped_mm"]),
    "fp8 e5m2": (good(mat_a=A.to(torch.float8_e5m2)), TypeError, ["mat_a", "float8_e5m2"]),
    "mixed dtypes": (good(mat_b=B.float()), TypeError, ["mat_b", "float16", "float32"]),
    "A on meta": (good(mat_a=A.to("meta")), ValueError, ["mat_b", "device", "meta"]),
    "B on meta": (good(mat_b=B.to("meta")), ValueError, ["mat_b", "device", "meta"]),
    "K": (good(mat_b=matrix(2, 7, 6)), ValueError, ["mat_a", "K = 8", "7 rows", "(12, 8)", "(2, 7, 6)"]),
    "weights (N, K)": (good(mat_b=matrix(2, 6, 8)), ValueError, ["K = 8", "6 rows", "pass mat_b.mT"]),
    "float8 B": (
        good(mat_b=matrix(2, 8, 6).to(FP8)),
        TypeError,
        ["mat_b", "got torch.float8", "scaled_grouped_mm"],
    ),
    "K of a batch": (dict(mat_a=A3, mat_b=matrix(2, 7, 6)), ValueError, ["K = 8", "7 rows"]),
    "K in mode n": (dict(mat_a=A3, mat_b=matrix(9, 12), offs=OFFS), ValueError, ["K = 8", "9 rows"]),
    "groups of a batch": (dict(mat_a=A3, mat_b=matrix(3, 8, 6)), ValueError, ["mat_a holds 2", "mat_b holds 3"]),
    "too long": (good(mat_a=matrix(1, 8).expand(2**31 - 64, 8)), ValueError, ["mat_a", "2**31 - 2**16"]),
    "no offs in m": (good(offs=None), ValueError, ["offs", "rows of mat_a", "None"]),
    "no offs in n": (dict(mat_a=A3, mat_b=B2), ValueError, ["offs", "columns of mat_b", "None"]),
    "no offs in k": (dict(mat_a=WIDE, mat_b=LONG), ValueError, ["offs", "columns of mat_a", "None"]),
    "offs of a batch": (dict(mat_a=A3, mat_b=B, offs=OFFS), ValueError, ["offs must be None", "(2,)"]),
    "offs is a list": (good(offs=[5, 12]), TypeError, ["offs", "torch.Tensor", "list"]),
    "offs is float": (good(offs=OFFS.float()), TypeError, ["offs", "int32 or torch.int64", "float32"]),
    "offs is int16": (good(offs=OFFS.short()), TypeError, ["offs", "int16"]),
    "offs is 2-D": (good(offs=OFFS[None]), ValueError, ["offs", "1-D", "(1, 2)"]),
    "offs is a scalar": (good(offs=OFFS[0]), ValueError, ["offs", "1-D", "()"]),
    "offs on meta": (good(offs=OFFS.to("meta")), ValueError, ["offs", "device", "meta"]),
    "offs with the start": (good(offs=ends(0, 5, 12)), ValueError, ["offs", "2 groups of mat_b", "got 3", "leading 0"]),
    "too few offs": (good(offs=ends(12)), ValueError, ["offs", "2 groups of mat_b", "got 1"]),
    "offs of mode n": (dict(mat_a=A3, mat_b=B2, offs=ends(12)), ValueError, ["offs", "2 groups of mat_a", "got 1"]),
    "bias is a list": (good(bias=[1.0]), TypeError, ["bias", "torch.Tensor", "list"]),
    "bias without groups": (good(bias=B[0, 0]), ValueError, ["bias", "(G, N) = (2, 6)", "(6,)"]),
    "bias transposed": (good(bias=matrix(6, 2)), ValueError, ["bias", "(2, 6)", "(6, 2)"]),
    "bias in mode n": (
        dict(mat_a=A3, mat_b=B2, offs=OFFS, bias=matrix(2, 12)),
        ValueError,
        ["bias", "None", "(2, 12)"],
    ),
    "bias dtype": (good(bias=matrix(2, 6, dtype=torch.bfloat16)), TypeError, ["bias", "float16", "bfloat16"]),
    "bias on meta": (good(bias=matrix(2, 6).to("meta")), ValueError, ["bias", "device", "meta"]),
    "out_dtype": (good(out_dtype=torch.float64), TypeError, ["out_dtype", "float32", "float64"]),
    "out_dtype int": (good(out_dtype=torch.int32), TypeError, ["out_dtype", "int32"]),
    "out_dtype name": (good(out_dtype="float16"), TypeError, ["out_dtype", "'float16'"]),
    "tail": (good(tail="nan"), ValueError, ["tail", "zero", "'nan'"]),
    "tail None": (good(tail=None), ValueError, ["tail", "None"]),
    "config": (good(config=(64, 64, 64)), TypeError, ["config", "GemmConfig", "tuple"]),
    "negative end": (good(offs=ends(-1, 12), check=True), ValueError, ["offs[0] = -1"]),
    "decreasing ends": (good(offs=ends(7, 3), check=True), ValueError, ["offs[1] = 3", "offs[0] = 7", "decrease"]),
    "end past the rows": (good(offs=ends(5, 13), check=True), ValueError, ["offs[1] = 13", "total_m = 12"]),
    "end past the columns": (
        dict(mat_a=A3, mat_b=B2, offs=ends(5, 13, dtype=torch.int64), check=True),
        ValueError,
        ["offs[1] = 13", "total_n = 12"],
    ),
    "end past total_k": (
        dict(mat_a=WIDE, mat_b=LONG[:9], offs=ends(5, 12), check=True),
        ValueError,
        ["offs[1] = 12", "total_k = 9"],
    ),
}


@pytest.mark.parametrize("what", ERRORS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_message_and_nothing_written(backend, what):
    arguments, error, words = ERRORS[what]
    with pytest.raises(error) as caught:
        grouped_mm(**arguments, backend=backend)
    assert_message(caught, words)
    shape = {"end past the columns": (6, 12), "end past total_k": (2, 6, 8)}.get(what, (12, 6))
    out, verify = poisoned(shape, device=DEVICE)
    with pytest.raises(error) as caught:
        grouped_mm(**arguments, backend=backend, out=out)
    assert_message(caught, words)
    verify()
    assert out.isnan().all(), "out was written before the error"


@pytest.mark.parametrize("what", [what for what, case in ERRORS.items() if not case[0].get("check")])
def test_the_same_message_where_gradients_or_modes_send_the_call_elsewhere(what):
    arguments, error, words = ERRORS[what]
    tracked = dict(arguments)
    if isinstance(b := arguments["mat_b"], torch.Tensor) and b.dtype.is_floating_point:
        tracked["mat_b"] = b.detach().requires_grad_()
    with pytest.raises(error) as caught:
        grouped_mm(**tracked)
    assert_message(caught, words)
    with FlopCounterMode(display=False), pytest.raises(error) as caught:
        grouped_mm(**arguments)
    assert_message(caught, words)


@pytest.mark.parametrize("backend", ["cuda", None, 3, ["torch"]])
def test_backend(backend):
    with pytest.raises(ValueError, match="backend must be one of") as caught:
        grouped_mm(A, B, offs=OFFS, backend=backend)
    assert repr(backend) in str(caught.value)


def test_one_bad_call_is_not_remembered_as_good():
    for _ in range(2):
        with pytest.raises(ValueError, match="K = 8"):
            grouped_mm(A, matrix(2, 7, 6), offs=OFFS)


@pytest.mark.skipif(runtime.mode() != "gpu", reason="only a GPU lacks a type")
@pytest.mark.parametrize("dtype, query, capability", [(torch.bfloat16, "supports_bf16", "8.0")], ids=str)
def test_type_that_the_hardware_does_not_multiply(monkeypatch, dtype, query, capability):
    monkeypatch.setattr(runtime, query, lambda device: False)
    monkeypatch.setattr(execute, "plans", execute.PlanCache())
    with pytest.raises(TypeError, match=f"capability {capability} or newer"):
        grouped_mm(A.to(dtype), B.to(dtype), offs=OFFS)
    grouped_mm(A.to(dtype), B.to(dtype), offs=OFFS, backend="torch")
