"""The list API: every method, type and layout gives the exact product, whatever is empty; nothing else is touched.

Small problems, in Triton's interpreter or, where there is one, on the GPU; `test_group_gemm_gpu` has the real sizes.
"""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, GroupGemmPlan, group_gemm, runtime
from course_kernels.testing import (
    STRIDES,
    Problem,
    assert_exact,
    assert_group_close,
    empty_problems,
    integers,
    make_operands,
    poisoned,
    ragged_problems,
    strided_like,
)

# Where there is a GPU all of this runs on it, so `-m gpu` takes it too.
pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

METHODS = ("naive", "round_robin", "tma")
GROUPED = ("round_robin", "tma")
# Operands' type and, for float32, how they are multiplied.
KINDS = [
    (torch.float16, "ieee"),
    (torch.bfloat16, "ieee"),
    (torch.float32, "ieee"),
    (torch.float32, "tf32"),
    (torch.float8_e4m3fn, "ieee"),
]
SMALL = GemmConfig(32, 32, 32, group_m=2)
# Rotating through the problems below, each method meets each layout with several kinds of tail.
LAYOUTS = [
    ("row", "row"),
    ("col", "row"),
    ("row", "col"),
    ("col", "col"),
    ("padded", "transposed"),
    ("transposed", "padded"),
    ("every_other", "row"),
    ("row", "every_other"),
    ("unaligned", "unaligned"),
    ("expanded", "row"),
    ("row", "expanded"),
]
TAILS = [
    Problem(32, 32, 32),  # exactly one tile
    Problem(48, 16, 80),  # tails in M, N and K, all multiples of 16
    Problem(33, 34, 65),  # one or two past whole tiles
    Problem(1, 1, 1),
    Problem(31, 8, 16),
]


def id_of(value):
    return "-".join(str(part).removeprefix("torch.") for part in (value if isinstance(value, tuple) else (value,)))


def rotated(problems, layouts, dtype, seed=0):
    """Operands in which problem i has layout i."""
    generator = torch.Generator().manual_seed(seed)
    group_A, group_B = [], []
    for i, (m, n, k) in enumerate(problems):
        for group, shape, how in zip((group_A, group_B), ((m, k), (k, n)), layouts[i % len(layouts)]):
            group.append(strided_like(integers(shape, dtype, generator, device=runtime.device()), how))
    return group_A, group_B


def operands(problems, dtype=torch.float16, seed=0):
    return make_operands(problems, dtype, seed, device=runtime.device())


def check(outs, group_A, group_B):
    assert len(outs) == len(group_A)
    for i, (c, a, b) in enumerate(zip(outs, group_A, group_B)):
        assert_exact(c, a, b, what=f"problem {i}")


# ---- the product


@pytest.mark.parametrize("kind", KINDS, ids=id_of)
@pytest.mark.parametrize("method", METHODS)
def test_every_layout_with_every_tail(method, kind):
    dtype, precision = kind
    shift = KINDS.index(kind)  # no layout keeps to the same two tails
    problems = [TAILS[(i + shift) % len(TAILS)] for i in range(2 * len(LAYOUTS))]
    group_A, group_B = rotated(problems, LAYOUTS, dtype)
    outs = group_gemm(group_A, group_B, method=method, precision=precision, config=SMALL)
    check(outs, group_A, group_B)
    assert outs[0].dtype == (torch.bfloat16 if dtype.itemsize == 1 else dtype)
    assert all(c.is_contiguous() for c in outs)


@pytest.mark.parametrize("kind", KINDS, ids=id_of)
@pytest.mark.parametrize("layouts", [("row", "row"), ("row", "col"), ("col", "row"), ("padded", "padded")], ids=id_of)
def test_auto_takes_operands_of_any_kind(kind, layouts):
    dtype, precision = kind
    group_A, group_B = rotated(TAILS, [layouts], dtype)
    check(group_gemm(group_A, group_B, precision=precision), group_A, group_B)


@pytest.mark.parametrize("method", METHODS)
def test_chosen_configuration(method):
    group_A, group_B = operands([*TAILS, Problem(64, 130, 70)])
    check(group_gemm(group_A, group_B, method=method), group_A, group_B)


@pytest.mark.parametrize("config", [GemmConfig(16, 32, 64), GemmConfig(64, 16, 32, num_warps=2)], ids=lambda c: c.block)
@pytest.mark.parametrize("method", METHODS)
def test_blocks_of_unequal_extents(method, config):
    group_A, group_B = rotated([Problem(50, 40, 72), Problem(64, 64, 64)] * 2, LAYOUTS[:4], torch.float16)
    check(group_gemm(group_A, group_B, method=method, config=config), group_A, group_B)


@pytest.mark.parametrize("schedule", ["round_robin", "chunks", "dynamic"])
@pytest.mark.parametrize("store_parts", [1, 2])
@pytest.mark.parametrize("method", GROUPED)
def test_schedules_and_stores_agree(method, store_parts, schedule):
    config = GemmConfig(32, 32, 32, schedule=schedule, store_parts=store_parts, group_m=3)
    group_A, group_B = operands([*ragged_problems(), Problem(64, 48, 40)])
    check(group_gemm(group_A, group_B, method=method, config=config), group_A, group_B)


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float32], ids=id_of)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=id_of)
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_out_dtype(method, dtype, out_dtype):
    group_A, group_B = operands([Problem(33, 24, 40), Problem(16, 16, 16)], dtype)
    outs = group_gemm(group_A, group_B, method=method, out_dtype=out_dtype, config=SMALL)
    assert {c.dtype for c in outs} == {out_dtype}
    check(outs, group_A, group_B)


@pytest.mark.parametrize("kind", KINDS, ids=id_of)
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_random_data_stay_within_the_error_bound(method, kind):
    dtype, precision = kind
    generator = torch.Generator().manual_seed(3)
    shapes = [(33, 40, 100), (64, 17, 48)]
    group_A = [torch.randn(m, k, generator=generator).to(runtime.device(), dtype) for m, n, k in shapes]
    group_B = [torch.randn(k, n, generator=generator).to(runtime.device(), dtype) for m, n, k in shapes]
    accumulation = precision if dtype == torch.float32 else None
    outs = group_gemm(group_A, group_B, method=method, precision=precision, config=SMALL)
    assert_group_close(outs, group_A, group_B, accumulation=accumulation)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=id_of)
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_sums_are_float32(method, dtype):
    """2048 and sixteen ones, one to a block of K: a sum kept in 16 bits stays at 2048, since 2049 is no such number."""
    depth = 17 * 32
    a = torch.zeros(16, depth, dtype=dtype)
    a[:, ::32] = 1
    a[:, 0] = 2048
    b = torch.ones(depth, 16, dtype=dtype)
    a, b = a.to(runtime.device()), b.to(runtime.device())
    (c,) = group_gemm([a], [b], method=method, config=SMALL, out_dtype=torch.float32)
    assert torch.equal(c, torch.full_like(c, 2064))


@pytest.mark.parametrize("method", METHODS)
def test_result_is_rounded_to_nearest_once(method):
    """1 + 2**-9 lies half way between two bfloat16 numbers, and a little more lies above: truncation would give 1."""
    a = torch.tensor([[1.0, 2.0**-8, 2.0**-7]], dtype=torch.bfloat16, device=runtime.device())
    b = torch.tensor([[1.0], [1.0], [2.0**-5]], dtype=torch.bfloat16, device=runtime.device())
    (c,) = group_gemm([a], [b], method=method, config=SMALL)
    assert c.item() == 1 + 2.0**-7


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")  # inf - inf, as it should
@pytest.mark.parametrize("method", METHODS)
def test_infinity_and_nan_stay_in_their_row_and_column(method):
    group_A, group_B = operands([Problem(40, 40, 40)] * 2)
    group_A[0][3, 5] = float("inf")
    group_B[0][7, 35] = float("nan")
    got = group_gemm(group_A, group_B, method=method, config=SMALL)
    clean = torch.ones_like(got[0], dtype=torch.bool)
    clean[3], clean[:, 35] = False, False
    assert got[0][clean].isfinite().all()
    assert not got[0][~clean].isfinite().all()
    assert got[0][:, 35].isnan().all()
    assert_exact(got[1], group_A[1], group_B[1])


# ---- empty and tiny


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=id_of)
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_empty_problems_among_others(method, dtype):
    group_A, group_B = operands(empty_problems(), dtype)
    outs = group_gemm(group_A, group_B, method=method, config=SMALL)
    check(outs, group_A, group_B)
    assert [tuple(c.shape) for c in outs] == [(p.M, p.N) for p in empty_problems()]


@pytest.mark.parametrize("problems", [[], [(0, 8, 8)], [(8, 0, 8)], [(0, 0, 0)] * 3, [(8, 8, 0)], [(1, 1, 1)]], ids=str)
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_lists_with_nothing_to_do(method, problems):
    group_A, group_B = operands(problems)
    outs = group_gemm(group_A, group_B, method=method, config=SMALL)
    assert isinstance(outs, list)
    check(outs, group_A, group_B)
    plan = GroupGemmPlan(group_A, group_B, method=method, config=SMALL)
    check(plan.run(), group_A, group_B)
    assert "problem" in repr(plan)


@pytest.mark.parametrize("method", METHODS)
def test_k_of_zero_writes_zeros(method):
    group_A, group_B = operands([(40, 24, 0), (8, 8, 8)])
    out = [torch.full((40, 24), float("nan")), torch.full((8, 8), float("nan"))]
    out = [c.to(runtime.device(), torch.float16) for c in out]
    group_gemm(group_A, group_B, method=method, config=SMALL, out=out)
    assert torch.equal(out[0], torch.zeros_like(out[0]))


@pytest.mark.parametrize("how", STRIDES)
@pytest.mark.parametrize("method", METHODS)
def test_one_row_and_one_column_of_any_strides(method, how):
    """The stride along an extent of 1 means nothing, and views give it any value."""
    problems = [Problem(1, 33, 40), Problem(40, 1, 33), Problem(33, 40, 1), Problem(1, 1, 48), Problem(1, 32, 1)]
    group_A, group_B = rotated(problems, [(how, how)], torch.float16)
    check(group_gemm(group_A, group_B, method=method, config=SMALL), group_A, group_B)


@pytest.mark.parametrize("method", METHODS)
def test_operands_shared_between_problems(method):
    (a, *_), (b, *_) = operands([(32, 32, 32)])
    group_A, group_B = [a, a, a.t(), b], [b, b.t(), b, b]
    check(group_gemm(group_A, group_B, method=method, config=SMALL), group_A, group_B)


def test_sequences_other_than_lists():
    group_A, group_B = operands(TAILS)
    check(group_gemm(tuple(group_A), tuple(group_B), method="round_robin", config=SMALL), group_A, group_B)


# ---- memory: reads and writes stay inside


@pytest.mark.parametrize("margin", [16, 3], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float8_e4m3fn], ids=id_of)
@pytest.mark.parametrize("method", METHODS)
def test_nothing_outside_an_operand_is_used_and_nothing_outside_an_output_is_written(method, dtype, margin):
    problems = [Problem(33, 40, 48), Problem(50, 17, 70), Problem(16, 64, 5)]
    out_dtype = torch.float16
    group_A, group_B, out, verifies = [], [], [], []
    for i, (m, n, k) in enumerate(problems):
        for group, shape in ((group_A, (m, k)), (group_B, (k, n))):
            view, _ = poisoned(shape, dtype, margin, device=runtime.device())
            view.copy_(integers(shape, dtype, i, device=runtime.device()))
            group.append(view)
        view, verify = poisoned((m, n), out_dtype, margin, device=runtime.device())
        out.append(view)
        verifies.append(verify)
    kept = [t.clone() for t in group_A + group_B]
    outs = group_gemm(group_A, group_B, method=method, config=SMALL, out=out, out_dtype=out_dtype)
    for verify in verifies:
        verify(all_written=True)
    check(outs, group_A, group_B)
    assert all(torch.equal(t.float(), k.float()) for t, k in zip(group_A + group_B, kept)), "an operand was written to"


@pytest.mark.parametrize("how", ["row", "col", "transposed", "padded", "unaligned", "every_other"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=id_of)
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_out_of_any_strides_is_written_in_place(method, dtype, how):
    group_A, group_B = operands([(33, 40, 48), (32, 64, 16), (1, 7, 3)], dtype)
    blank = [torch.full((a.shape[0], b.shape[1]), float("nan"), dtype=dtype) for a, b in zip(group_A, group_B)]
    out = [strided_like(c.to(runtime.device()), how) for c in blank]
    addresses = [c.data_ptr() for c in out]
    got = group_gemm(group_A, group_B, method=method, config=SMALL, out=out)
    assert all(g is c for g, c in zip(got, out))
    assert [c.data_ptr() for c in out] == addresses
    check(out, group_A, group_B)


@pytest.mark.parametrize("method", METHODS)
def test_outputs_that_interlock_without_sharing_an_element(method):
    """Two halves of one row-major matrix, side by side: their address ranges overlap, their elements do not."""
    group_A, group_B = operands([(40, 32, 16), (40, 24, 16)])
    whole = torch.full((40, 56), float("nan"), dtype=torch.float16, device=runtime.device())
    group_gemm(group_A, group_B, method=method, config=SMALL, out=list(whole.split([32, 24], dim=1)))
    check(list(whole.split([32, 24], dim=1)), group_A, group_B)


def test_auto_on_cpu_tensors_computes_with_torch(monkeypatch):
    if runtime.mode() == "gpu":
        device = "cpu"
    else:
        device = runtime.device()
        # The kernels must not be reached: the interpreter would take minutes for problems of ordinary size.
        monkeypatch.setattr(runtime, "check_can_launch", None)
    group_A, group_B = make_operands([(300, 200, 100)], device=device)
    check(group_gemm(group_A, group_B), group_A, group_B)


def test_parameter_lists_are_lists():
    group_A, group_B = operands([(8, 8, 8), (4, 8, 16)])
    parameters = torch.nn.ParameterList(b.float() for b in group_B)
    outs = group_gemm([a.float() for a in group_A], parameters)
    assert all(torch.equal(c, a.float() @ b) for c, a, b in zip(outs, group_A, parameters))
