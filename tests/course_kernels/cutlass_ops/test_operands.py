"""Operands described to the Operator API: what fits together, and what keeps an operator from taking them."""

from __future__ import annotations

import re

import cutlass.operators as ops
import pytest
import torch

from course_kernels import cutlass_ops
from course_kernels.cutlass_ops import NoOperator
from cutlass_cases import BF16, FP8, FP16, FP32, TOTAL_M, G, K, N, described, meta


def off_by_an_element(*shape):
    return torch.empty(torch.Size(shape).numel() + 1, dtype=BF16)[1:].view(shape)


def test_arguments_are_nvidias_own_and_copy_nothing():
    mat_a, mat_b = torch.zeros(64, 32, dtype=BF16, requires_grad=True), torch.zeros(3, 16, 32, dtype=BF16).mT
    offs = torch.tensor([10, 10, 60], dtype=torch.int32)
    args = cutlass_ops.arguments(mat_a, mat_b, offs=offs, out_dtype=FP32)
    assert isinstance(args, ops.IndexPtrGroupedGemmArguments)
    assert args.offsets_along == "m"
    assert args.A.tensor.runtime_tensor.data_ptr() == mat_a.data_ptr()
    assert args.B.tensor.runtime_tensor.data_ptr() == mat_b.data_ptr()
    out = args.out.tensor.runtime_tensor
    assert (tuple(out.shape), out.dtype) == ((64, 16), FP32)
    given = torch.zeros(64, 16, dtype=BF16)
    assert cutlass_ops.arguments(mat_a, mat_b, offs=offs, out=given).out.tensor.runtime_tensor is given


@pytest.mark.parametrize(
    ("a", "b", "along", "out"),
    [
        ((64, 32), (3, 32, 16), "m", (64, 16)),
        ((3, 64, 32), (32, 48), "n", (64, 48)),
        ((64, 96), (96, 16), "k", (3, 64, 16)),
    ],
)
def test_ranks_say_what_is_shared_out(a, b, along, out):
    args = cutlass_ops.arguments(meta(*a), meta(*b), offs=meta(3, dtype=torch.int32))
    assert (args.offsets_along, tuple(args.out.shape)) == (along, out)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (dict(mat_a=None), TypeError, "mat_a must be a torch.Tensor, got NoneType"),
        (dict(offs=[1, 2, 3]), TypeError, "offs must be a torch.Tensor, got list"),
        (dict(mat_a=meta(2, 64, 32)), ValueError, r"2 and 3, 3 and 2, or 2 and 2 dimensions, got shapes \(2, 64, 32\)"),
        (dict(mat_a=meta(64, 24)), ValueError, "mat_a has K = 24, mat_b has K = 32"),
        (
            dict(mat_b=meta(3, 16, 32)),
            ValueError,
            r"K = 16: they must be equal; mat_b has shape \(3, 16, 32\): pass its",
        ),
        (dict(offs=meta(3, dtype=FP32)), TypeError, "offs must be torch.int32, got torch.float32"),
        (dict(out_dtype="float32"), TypeError, "out_dtype must be a torch.dtype, got 'float32'"),
        (dict(accumulator_type=None), TypeError, "accumulator_type must be a torch.dtype, got None"),
        (dict(offs=meta(4, dtype=torch.int32)), ValueError, "offs has the ends of 4 groups, mat_b holds 3 matrices"),
        (
            dict(offs=meta(3, 1, dtype=torch.int32)),
            ValueError,
            r"offs must have one dimension, \(G,\), got shape \(3, 1\)",
        ),
        (dict(out=meta(64, 24)), ValueError, r"out must have shape \(64, 16\), got \(64, 24\)"),
        (dict(out=meta(64, 16), out_dtype=FP32), ValueError, "out_dtype must be out's, torch.bfloat16, or None"),
        (dict(mat_b=torch.empty(3, 32, 16)), ValueError, "mat_b is on cpu, mat_a on meta"),
        (dict(mat_a=meta(64, 32, dtype=torch.complex64)), TypeError, "mat_a is torch.complex64, a dtype that CUTLASS"),
    ],
)
def test_arguments_that_do_not_fit_one_another(changed, error, message):
    given = dict(mat_a=meta(64, 32), mat_b=meta(3, 32, 16), offs=meta(3, dtype=torch.int32)) | changed
    with pytest.raises(error, match=message):
        cutlass_ops.arguments(given.pop("mat_a"), given.pop("mat_b"), **given)


BAD = [
    ("fp32 operands", lambda: described(FP32), "100f", ["mat_a must be bfloat16, float16, .*, got float32"]),
    ("fp64 operands", lambda: described(torch.float64, out_dtype=FP32), "100f", ["mat_a must be .*, got float64"]),
    ("mixed operands", lambda: described(b_dtype=FP16), "100f",
     ["mat_b must be bfloat16 where mat_a is bfloat16, got float16"]),
    ("two kinds of fp8", lambda: described(FP8, b_dtype=torch.float8_e5m2, out_dtype=BF16), "100f",
     ["mat_b must be float8_e4m3fn where mat_a is float8_e4m3fn, got float8_e5m2"]),
    ("fp8 result", lambda: described(FP8), "100f", ["out must be bfloat16, float16 or float32 .*, got float8_e4m3fn"]),
    ("fp64 result", lambda: described(out_dtype=torch.float64), "100f", ["out must be bfloat16, float16 or float32"]),
    ("fp16 sums", lambda: described(accumulator_type=FP16), "100f", ["accumulator_type must be float32, got float16"]),
    ("int64 offsets", lambda: described(offs_dtype=torch.int64), "100f", [r"offs must be int32, got int64: use \.to"]),
    ("B stored (G, K, N)", lambda: described(b=meta(G, K, N)), "100f",
     [r"mat_b \(G, K, N\) must have stride 1 along K, got strides \(2097152, 2048, 1\): store it as \(G, N, K\) and"]),
    ("A stored (K, total_m)", lambda: described(a=meta(K, TOTAL_M).mT), "100f",
     [r"mat_a \(total_m, K\) must have stride 1 along K, got strides \(1, 8192\): use \.contiguous\(\)"]),
    ("result stored (N, total_m)", lambda: described(out=meta(N, TOTAL_M).mT), "100f",
     [r"out \(total_m, N\) must have stride 1 along N"]),
    ("K of 1020", lambda: described(k=1020), "100f",
     [r"mat_a's stride along total_m must be a multiple of 8 elements \(16 bytes\), .*: pad K", "mat_b's stride"]),
    ("K of 1032 in fp8", lambda: described(FP8, k=1032, out_dtype=BF16), "100f",
     [r"mat_a's stride along total_m must be a multiple of 16 elements \(16 bytes\)", "mat_b's stride"]),
    ("N of 2044", lambda: described(n=2044), "100f", ["out's stride along total_m must be a multiple of 8 elements"]),
    ("address", lambda: cutlass_ops.arguments(off_by_an_element(64, 128), torch.empty(4, 64, 128, dtype=BF16).mT,
                                              offs=torch.zeros(4, dtype=torch.int32)), "100f",
     [r"mat_a must start at a multiple of 16 bytes, got an address 2 bytes past one: use \.clone\(\)"]),
    ("gaps", lambda: described(a=meta(TOTAL_M, 2 * K)[:, :K]), "100f",
     [r"mat_a must be packed, without gaps between its rows: got shape \(8192, 1024\) with strides \(2048, 1\)"]),
    ("K shared out", lambda: cutlass_ops.arguments(meta(256, 512), meta(512, 256), offs=meta(4, dtype=torch.int32)),
     "100f", ["offs shares out K, and there are operators only where it shares out M"]),
    ("an older GPU", described, "80", [r"target must be 100f \(or any 10xa\).*, got 80"]),
    ("a GPU without tcgen05", described, "120a", [r"target must be 100f \(or any 10xa\).*, got 120a"]),
    ("a target without its letter", described, "100", [r"target must be .*, got 100$", "mean '100a' or '100f'"]),
    ("Hopper without its letter", described, "90", [r"target must be .*, got 90$", r"did you mean '90a'\?"]),
    ("fp32 on Hopper", lambda: described(FP32), "90a", ["mat_a must be bfloat16 or float16, got float32$"]),
    ("fp8 on Hopper", lambda: described(FP8, out_dtype=BF16), "90a", ["target must be 100f .* dtypes, got 90a"]),
    ("no depth", lambda: described(k=0), "90a", [r"K must be at least 1, got mat_a of shape \(8192, 0\)"]),
    ("no columns", lambda: described(n=0), "100f", [r"N must be at least 1, got mat_b of shape \(12, 1024, 0\)"]),
    ("no rows", lambda: described(total_m=0), "90a", ["total_m must be at least 1, got mat_a"]),
    ("no groups", lambda: described(groups=0), "90a", ["G must be at least 1, got mat_b"]),
    ("much", lambda: described(FP32, b=meta(G, K, N, dtype=FP32), offs_dtype=torch.int64), "100f",
     ["mat_a must be", "offs must be int32", r"mat_b \(G, K, N\) must have stride 1 along K"]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "target", "reasons"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_is_told_what_the_operators_need(make, target, reasons):
    args = make()
    with pytest.raises(NoOperator) as caught:
        cutlass_ops.discover(args, target)
    told = caught.value.reasons
    assert len(told) >= len(reasons)
    for wanted in reasons:
        assert any(re.search(wanted, each) for each in told), told
    # Nor does an operator that was found for better operands take these.
    good = cutlass_ops.discover(described(), "100f")[0]
    with pytest.raises(NoOperator):
        cutlass_ops.compile(good, args, target)


@pytest.mark.parametrize("name", ["fp32 operands", "mixed operands", "fp64 result"])
def test_the_api_itself_lets_dtypes_pass_that_no_operator_declares(name):
    """Why ``discover`` looks again: without arguments in hand the same classes do not list these."""
    (args,) = (make() for case, make, *_ in BAD if case == name)
    assert ops.get_operators(args, target_sm="100f")


def test_repaired_arguments_find_operators():
    assert len(cutlass_ops.discover(described(k=1024, n=2048, offs_dtype=torch.int32), "100f"))
    assert len(cutlass_ops.discover(described(FP8, out_dtype=BF16), "100f"))
    assert len(cutlass_ops.discover(described(groups=1, total_m=8), "100f"))


@pytest.mark.parametrize("target", ["90a", "100f"])
def test_an_operator_says_what_it_takes_itself(target):
    """Though others of its class take these operands."""
    operator = cutlass_ops.discover(described(), target)[0]
    for args, reasons in (
        (
            described(FP16),
            [f"{each} must be bfloat16 for this operator, got float16" for each in ("mat_a", "mat_b", "out")],
        ),
        (described(out_dtype=FP32), ["out must be bfloat16 for this operator, got float32"]),
        (described(offs_dtype=torch.int64), ["offs must be int32 for this operator, got int64"]),
        (described(k=0), ["K must be at least 1, got mat_a of shape (8192, 0)"]),
        (
            cutlass_ops.arguments(meta(64, 96), meta(96, 16), offs=meta(3, dtype=torch.int32)),
            ["offs shares out K, which this operator is not for"],
        ),
    ):
        with pytest.raises(NoOperator) as caught:
            cutlass_ops.compile(operator, args, target)
        assert caught.value.reasons == reasons


def test_dtypes_that_depend_on_a_wrong_one_are_not_complained_of():
    args = described(dtype=torch.int32)
    with pytest.raises(NoOperator) as caught:
        cutlass_ops.discover(args, "100f")
    assert [reason for reason in caught.value.reasons if "int32" in reason] == [
        "mat_a must be bfloat16, float16, float8_e4m3fn or float8_e5m2, got int32"
    ]
