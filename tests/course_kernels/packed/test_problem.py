"""Bad input to grouped_mm and scaled_grouped_mm: the argument, what it got, what it wants; not an element written."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.functional import ScalingType, SwizzleType
from torch.utils.flop_counter import FlopCounterMode

from course_kernels import GemmConfig, grouped_mm, runtime, scaled_grouped_mm
from course_kernels.memory import share_memory
from course_kernels.packed import execute
from course_kernels.testing import integers, poisoned

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("auto", "torch", "triton")
DEVICE = runtime.device()
ROW = ScalingType.RowWise
FP8 = torch.float8_e4m3fn


def matrix(*shape, dtype=torch.float16):
    return integers(shape, dtype, device=DEVICE)


def ends(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


A, B, OFFS = matrix(12, 8), matrix(2, 8, 6), ends(5, 12)  # mode "m", the result is (12, 6)
A3, B2, WIDE, LONG = matrix(2, 6, 8), matrix(8, 12), matrix(6, 12), matrix(12, 8)  # for the other modes


def good(**changes):
    return dict(mat_a=A, mat_b=B, offs=OFFS) | changes


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


def assert_message(caught, words):
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"


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


def test_keep_wants_an_out():
    with pytest.raises(ValueError, match="tail must be 'zero' where out is not given, got 'keep'"):
        grouped_mm(A, B, offs=OFFS, tail="keep")


@pytest.mark.skipif(runtime.mode() != "gpu", reason="only a GPU lacks a type")
@pytest.mark.parametrize("dtype, query, capability", [(torch.bfloat16, "supports_bf16", "8.0")], ids=str)
def test_type_that_the_hardware_does_not_multiply(monkeypatch, dtype, query, capability):
    monkeypatch.setattr(runtime, query, lambda device: False)
    monkeypatch.setattr(execute, "plans", execute.PlanCache())
    with pytest.raises(TypeError, match=f"capability {capability} or newer"):
        grouped_mm(A.to(dtype), B.to(dtype), offs=OFFS)
    grouped_mm(A.to(dtype), B.to(dtype), offs=OFFS, backend="torch")


# ---- out


def bad_outs():
    base = torch.zeros(200, dtype=torch.float16, device=DEVICE)
    negative = torch.zeros(12, 6, dtype=torch.complex64, device=DEVICE).conj().imag
    return {
        "a list": ([matrix(12, 6)], TypeError, ["out", "torch.Tensor", "list"]),
        "shape": (matrix(12, 5), ValueError, ["out", "(12, 6)", "(12, 5)"]),
        "rank": (matrix(1, 12, 6), ValueError, ["out", "(12, 6)", "(1, 12, 6)"]),
        "dtype": (matrix(12, 6, dtype=torch.float32), TypeError, ["out", "float16", "float32"]),
        "device": (matrix(12, 6).to("meta"), ValueError, ["out", "device", "meta"]),
        "sparse": (torch.zeros(12, 6).to_sparse(), TypeError, ["out", "dense", "sparse_coo"]),
        "gradient": (matrix(12, 6).requires_grad_(), ValueError, ["out", "gradient", "detach"]),
        "expanded": (base[:6].expand(12, 6), ValueError, ["out", "share memory", "(0, 1)"]),
        "overlapping rows": (base.as_strided((12, 6), (5, 1)), ValueError, ["out", "share memory", "(5, 1)"]),
        "negated": (negative, ValueError, ["out", "negated"]),
    }


@pytest.mark.parametrize("what", bad_outs())
@pytest.mark.parametrize("backend", BACKENDS)
def test_out(backend, what):
    out, error, words = bad_outs()[what]
    arguments = good() if what != "negated" else good(mat_a=A.float(), mat_b=B.float())
    before = out.clone() if isinstance(out, torch.Tensor) and not out.is_meta else None
    with pytest.raises(error) as caught:
        grouped_mm(**arguments, out=out, backend=backend)
    assert_message(caught, words)
    if before is not None and not before.is_sparse:
        assert torch.equal(out, before), "out was written before the error"


def test_out_must_have_the_dtype_that_is_asked_for():
    with pytest.raises(TypeError, match=r"out must have dtype torch\.float32, got torch\.float16"):
        grouped_mm(A, B, offs=OFFS, out=matrix(12, 6), out_dtype=torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_out_that_shares_memory(backend):
    pool = torch.ones(4, 16, 40, dtype=torch.float16, device=DEVICE)
    offs = ends(4, 9, 9, 12)
    left, right = pool[..., :16], pool[..., 16:32]
    for name, arguments, out in (
        ("mat_a", dict(mat_a=left[0], mat_b=right, offs=offs), left[0]),
        ("mat_b", dict(mat_a=matrix(16, 16), mat_b=right, offs=offs), right[1]),
        ("mat_a", dict(mat_a=left, mat_b=right), left),
        ("mat_b", dict(mat_a=left, mat_b=right), right),
        ("mat_a", dict(mat_a=left, mat_b=matrix(4, 16, 16)), pool[..., 8:24]),
        ("bias", dict(mat_a=matrix(16, 16), mat_b=right, offs=offs, bias=pool[0, :4, :16]), pool[0, :, :16]),
    ):
        with pytest.raises(ValueError, match=f"out shares memory with {name}"):
            grouped_mm(**arguments, out=out, backend=backend)
    assert (pool == 1).all()
    wide_ends = torch.zeros(32, dtype=torch.int32, device=DEVICE)
    out = wide_ends.view(torch.float16)[:16].view(16, 1)
    with pytest.raises(ValueError, match="out shares memory with offs"):
        grouped_mm(matrix(16, 4), matrix(4, 4, 1), offs=wide_ends[:4], out=out, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_slices_that_interlock_do_not_overlap(backend):
    pool = torch.ones(4, 16, 48, dtype=torch.float16, device=DEVICE)
    out = grouped_mm(pool[..., :16], pool[..., 16:32], out=pool[..., 32:], backend=backend)
    assert (out == 16).all()
    assert (pool[..., :32] == 1).all()
    # A matrix of the same columns, whose rows lie between those of every matrix of the batch.
    out = grouped_mm(pool[0, :, :16], pool[..., 16:32], offs=ends(3, 3, 9, 16), out=pool[0, :, 32:], backend=backend)
    assert (out == 16).all()
    assert (pool[..., :32] == 1).all()


def test_sharing_is_judged_as_by_listing_addresses():
    """Slices of one buffer, all of the same strides: what share_memory says is what sets of addresses say."""
    buffer = torch.arange(4 * 6 * 8)
    generator = random.Random(0)

    def cut(extent):
        start = generator.randrange(extent)
        return slice(start, generator.randint(start + 1, extent))

    answers = set()
    for _ in range(500):
        x, y = (buffer.view(4, 6, 8)[cut(4), cut(6), cut(8)] for _ in range(2))
        x = x[0] if generator.random() < 0.5 else x
        x, y = (x, y) if generator.random() < 0.5 else (y, x)
        wanted = bool(set(x.flatten().tolist()) & set(y.flatten().tolist()))
        answers.add(wanted)
        assert share_memory(x, y) == wanted, (x, y)
    assert answers == {True, False}


def test_out_with_a_gradient():
    out, verify = poisoned((12, 6), device=DEVICE)
    with pytest.raises(ValueError, match="out cannot be given when an operand requires a gradient"):
        grouped_mm(A, B.clone().requires_grad_(), offs=OFFS, out=out)
    verify()
    assert out.isnan().all()
    with torch.no_grad():
        assert grouped_mm(A, B.clone().requires_grad_(), offs=OFFS, out=out) is out
    assert not out.isnan().any()


# ---- scaled_grouped_mm

A8, B8, SA, SB = A.to(FP8), B.to(FP8), torch.ones(12, device=DEVICE), torch.ones(2, 6, device=DEVICE)


def scaled(**changes):
    arguments = dict(mat_a=A8, mat_b=B8, scale_a=SA, scale_recipe_a=ROW, scale_b=SB, scale_recipe_b=ROW, offs=OFFS)
    return arguments | changes


SCALED_ERRORS = {
    "A not fp8": (scaled(mat_a=A), TypeError, ["mat_a", "float8_e4m3fn", "float16"]),
    "B not fp8": (scaled(mat_b=B), TypeError, ["mat_b", "float8_e4m3fn", "float16"]),
    "no scale": (scaled(scale_a=None), TypeError, ["scale_a", "torch.Tensor", "NoneType"]),
    "scale is a number": (scaled(scale_b=2.0), TypeError, ["scale_b", "torch.Tensor", "float"]),
    "scale dtype": (scaled(scale_a=SA.half()), TypeError, ["scale_a", "float32", "float16"]),
    "scale shape": (scaled(scale_a=SA[:11]), ValueError, ["scale_a", "(12,)", "row of mat_a", "(11,)"]),
    "scale of B": (scaled(scale_b=SB[0]), ValueError, ["scale_b", "(2, 6)", "column of mat_b", "(6,)"]),
    "scale on meta": (scaled(scale_b=SB.to("meta")), ValueError, ["scale_b", "device", "meta"]),
    "two scales": (scaled(scale_a=[SA, SA]), ValueError, ["scale_a", "one tensor", "2"]),
    "recipe": (scaled(scale_recipe_a=ScalingType.TensorWise), ValueError, ["scale_recipe_a", "RowWise", "TensorWise"]),
    "recipe of B": (scaled(scale_recipe_b=ScalingType.BlockWise1x32), ValueError, ["scale_recipe_b", "BlockWise1x32"]),
    "no recipe": (scaled(scale_recipe_a=None), ValueError, ["scale_recipe_a", "RowWise", "None"]),
    "swizzle": (scaled(swizzle_b=SwizzleType.SWIZZLE_32_4_4), ValueError, ["swizzle_b", "NO_SWIZZLE", "32_4_4"]),
    "contraction": (scaled(contraction_dim=(0, 1)), ValueError, ["contraction_dim", "(-1, -2)", "(0, 1)"]),
    "output_dtype": (scaled(output_dtype=torch.float64), TypeError, ["output_dtype", "float64"]),
    "bias": (scaled(bias=matrix(2, 6)), TypeError, ["bias", "bfloat16", "float16"]),
    "gradient": (scaled(scale_a=SA.clone().requires_grad_()), TypeError, ["scale_a", "gradient", "detach"]),
    "gradient of A": (scaled(mat_a=A8.clone().requires_grad_()), TypeError, ["mat_a", "gradient", "detach"]),
    "offs": (scaled(offs=None), ValueError, ["offs", "None"]),
    "ends": (scaled(offs=ends(5, 13), check=True), ValueError, ["offs[1] = 13", "total_m = 12"]),
    "scale in k": (
        scaled(mat_a=matrix(6, 12).to(FP8), mat_b=matrix(12, 6).to(FP8), scale_a=SA[:6], scale_b=SB),
        ValueError,
        ["scale_a", "(12,) or (2, 6)", "(6,)"],
    ),
}


@pytest.mark.parametrize("what", SCALED_ERRORS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_scaled(backend, what):
    arguments, error, words = SCALED_ERRORS[what]
    out, verify = poisoned((12, 6), torch.bfloat16, device=DEVICE)
    for options in (dict(), dict(out=out)):
        with pytest.raises(error) as caught:
            scaled_grouped_mm(**arguments, backend=backend, **options)
        assert_message(caught, words)
    verify()
    assert out.isnan().all()


def test_wrong_ends_never_write_outside():
    for offs in (ends(-100, 7), ends(9, 3), ends(5, 400), ends(-(2**31), 2**31 - 1), ends(30, 20)):
        for backend in ("torch", "triton"):
            out, verify = poisoned((12, 6), device=DEVICE)
            grouped_mm(A, B, offs=offs, out=out, backend=backend, config=GemmConfig(16, 16, 16))
            verify(all_written=True)
