"""grouped_mm forward: every mode, type, layout and pattern of groups gives the exact product, and touches nothing else.

The full product of modes, types, layouts, patterns, bias, outputs and offsets has tens of millions of cells. Nearly
every mistake that the code can make shows in a pair of properties, so the grid takes the mode with each other property
in turn, all its values, and lets the rest rotate from cell to cell; pairs across properties are left to the fuzz tests.
Sizes straddle blocks of 16 in every extent: one block exactly, one more, one less, a single row. All cases have whole
numbers and exact equality but where it says otherwise, operands in memory that ends in NaN, and a tail of NaN.

Small problems, in Triton's interpreter or, where there is one, on the GPU; `test_grouped_mm_gpu` has the real sizes.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from course_kernels import GemmConfig, grouped_mm, runtime, scaled_grouped_mm
from course_kernels.engine import plans as execute
from course_kernels.testing import STRIDES, integers, reference
from course_kernels.testing.grouped_cases import MODES, GroupedCase, build, check, layouts

# Where there is a GPU all of this runs on it, so `-m gpu` takes it too.
pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FP8 = torch.float8_e4m3fn
# Blocks so small that a tiny problem has boundary tiles on every side, and tiles for several programs.
SMALL = GemmConfig(16, 16, 16, group_m=2)
SMALL_FP8 = dataclasses.replace(SMALL, block_k=32)  # the least that a GPU's instruction takes along K
RAGGED = (17, 0, 16, 5)
BASE = {mode: GroupedCase(mode, RAGGED, 18, 24, 20, tail_size=0 if mode == "batch" else 9) for mode in MODES}


def id_of(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


def run(backend, case, *, config=None, **options):
    """Check a case through the public functions."""
    config = config or (SMALL_FP8 if case.scaled else SMALL)
    row_wise = torch.nn.functional.ScalingType.RowWise

    def function(mat_a, mat_b, scale_a=None, scale_b=None, out_dtype=None, **arguments):
        arguments |= dict(backend=backend, config=config)
        if scale_a is None:
            return grouped_mm(mat_a, mat_b, out_dtype=out_dtype, **arguments)
        output_dtype = out_dtype or torch.bfloat16
        scales = (scale_a, row_wise, scale_b, row_wise)
        return scaled_grouped_mm(mat_a, mat_b, *scales, output_dtype=output_dtype, **arguments)

    return check(case, function, device=runtime.device(), **options)


def replace(case, **changes):
    return dataclasses.replace(case, **changes)


# ---- types


@pytest.mark.parametrize("out_dtype", [None, *DTYPES], ids=id_of)
@pytest.mark.parametrize("dtype", [*DTYPES, FP8], ids=id_of)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_type_in_every_mode(backend, mode, dtype, out_dtype):
    run(backend, replace(BASE[mode], dtype=dtype, out_dtype=out_dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, FP8], ids=id_of)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_data_stay_within_the_error_bound(backend, mode, dtype):
    case = replace(BASE[mode], dtype=dtype, values="normal", K=70, sizes=(7, 16), out_dtype=torch.float32, seed=3)
    run(backend, replace(case, bias=None if mode == "n" or dtype == FP8 else torch.float32))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_tf32_only_where_torch_is_told_so(backend, mode):
    """In the interpreter, and on the CPU, both are full float32."""
    case = replace(BASE[mode], dtype=torch.float32, values="normal", sizes=(7, 16))
    run(backend, case, accumulation="ieee")
    saved, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
    try:
        run(backend, case, accumulation="tf32")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = saved


def product_of_ones(mode, depth, dtype):
    """2048 and sixteen ones, one to a block of K, times ones: two groups of it."""
    line = torch.zeros(1, depth, dtype=dtype)
    line[:, ::16] = 1
    line[:, 0] = 2048
    a, b = line.expand(16, depth), torch.ones(depth, 16, dtype=dtype)
    ends = {"m": [16, 32], "n": [16, 32], "k": [depth, 2 * depth], "batch": None}[mode]
    operands = {
        "m": (torch.cat([a, a]), torch.stack([b, b])),
        "n": (torch.stack([a, a]), torch.cat([b, b], dim=1)),
        "k": (torch.cat([a, a], dim=1), torch.cat([b, b])),
        "batch": (torch.stack([a, a]), torch.stack([b, b])),
    }[mode]
    device = runtime.device()
    return *(t.to(device) for t in operands), None if ends is None else torch.tensor(ends, device=device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=id_of)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_are_float32(backend, mode, dtype):
    """A sum kept in 16 bits stays at 2048, since 2049 is no such number."""
    a, b, offs = product_of_ones(mode, 17 * 16, dtype)
    result = grouped_mm(a, b, offs=offs, out_dtype=torch.float32, backend=backend, config=SMALL)
    assert torch.equal(result, torch.full_like(result, 2064))


@pytest.mark.parametrize("mode", ["m", "k", "batch"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_product_and_bias_are_rounded_to_nearest_once(backend, mode):
    """1 + 2**-8 lies half way between two bfloat16 numbers and rounds to the even 1; with a bias of 2**-12 it lies
    above the middle. Rounding before the bias is added gives 1, and so does truncation."""
    rows = torch.tensor([[1.0, 2.0**-8]], dtype=torch.bfloat16)
    ones = torch.ones(2, 1, dtype=torch.bfloat16)
    a, b = (rows, ones) if mode == "k" else (rows, ones[None]) if mode == "m" else (rows[None], ones[None])
    offs = {"m": [1], "k": [2], "batch": None}[mode]
    device = runtime.device()
    for dtype in (torch.bfloat16, torch.float32):
        result = grouped_mm(
            a.to(device),
            b.to(device),
            offs=None if offs is None else torch.tensor(offs, device=device),
            bias=torch.full((1, 1), 2.0**-12, dtype=dtype, device=device),
            backend=backend,
            config=SMALL,
        )
        assert result.item() == 1 + 2.0**-7


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")  # inf - inf, as it should
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_infinity_and_nan_stay_in_their_row_column_and_group(backend, mode):
    case = replace(BASE[mode], sizes=(20, 20), tail_size=0)
    operands = build(case, runtime.device())
    a, b = operands.mat_a, operands.mat_b
    (a[0] if a.ndim == 3 else a)[3, 4] = float("inf")
    (b[0] if b.ndim == 3 else b)[2, 7] = float("nan")
    result = grouped_mm(a, b, **operands.arguments, backend=backend, config=SMALL)
    clean = torch.ones_like(result, dtype=torch.bool)
    first = clean[0] if clean.ndim == 3 else clean[:20] if mode == "m" else clean[:, :20]
    first[3], first[:, 7] = False, False
    assert result[clean].isfinite().all()
    assert not result[~clean].isfinite().all()


# ---- layouts


NDIMS = {"m": (2, 3), "n": (3, 2), "k": (2, 2), "batch": (3, 3)}


def pairs_of_layouts(mode):
    """Each layout of A and each of B against rows, then each against another layout of the other operand."""
    of_a, of_b = (layouts(ndim) for ndim in NDIMS[mode])
    found = [(how, "row") for how in of_a] + [("row", how) for how in of_b[1:]]
    return found + [(of_a[i % len(of_a)], of_b[(3 * i + 1) % len(of_b)]) for i in range(len(of_a))]


@pytest.mark.parametrize("mode, pair", [(mode, pair) for mode in MODES for pair in pairs_of_layouts(mode)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_layout_of_either_operand(backend, mode, pair):
    i = pairs_of_layouts(mode).index(pair)
    changes = dict(layout_a=pair[0], layout_b=pair[1], dtype=DTYPES[i % 3], K=(16, 24, 17)[i % 3], seed=i)
    run(backend, replace(BASE[mode], sizes=(17, 0, 8), **changes))


OUT_LAYOUTS = [
    (mode, how, tail)
    for mode in MODES
    for how in layouts(2 if mode in ("m", "n") else 3)
    for tail in ("zero", "keep")[: 2 if mode in ("m", "n") else 1]
    if how not in ("expanded", "shared")  # elements that share memory cannot be written
]


@pytest.mark.parametrize("mode, how, tail", OUT_LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_out_of_every_layout(backend, mode, how, tail):
    i = layouts(3).index(how)
    run(backend, replace(BASE[mode], layout_out=how, tail=tail, dtype=DTYPES[i % 3], out_dtype=DTYPES[(i + 1) % 3]))


def test_tail_of_nothing_but_tail_can_be_kept():
    for mode in ("m", "n"):
        for changes in (dict(sizes=()), dict(sizes=(0, 0)), dict(K=0)):
            for backend in BACKENDS:
                run(backend, replace(BASE[mode], **changes, layout_out="padded", tail="keep"))


# ---- groups

PATTERNS = {
    "equal": ((16, 16, 16), 0),
    "ragged": ((5, 17, 33, 16, 1), 0),
    "ragged with a tail": ((5, 17, 33, 16, 1), 7),
    "first empty": ((0, 20, 7), 3),
    "middle empty": ((20, 0, 0, 7), 3),
    "last empty": ((20, 7, 0), 0),
    "all empty": ((0, 0, 0), 0),
    "all empty before a tail": ((0, 0, 0), 19),
    "one": ((35,), 0),
    "one empty": ((0,), 0),
    "none": ((), 0),
    "none before a tail": ((), 19),
    "one row each": ((1,) * 9, 0),
    "a tail of whole tiles": ((16, 16), 32),
    "long": ((150, 3), 1),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("mode", ["m", "n", "k"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_pattern_of_groups(backend, mode, pattern):
    sizes, tail = PATTERNS[pattern]
    i = list(PATTERNS).index(pattern)
    case = replace(BASE[mode], sizes=sizes, tail_size=tail, seed=i)
    run(backend, replace(case, offs_dtype=(torch.int32, torch.int64)[i % 2], offs_stride=1 + i % 3 // 2))


@pytest.mark.parametrize("offs_stride", [1, 2])
@pytest.mark.parametrize("offs_dtype", [torch.int32, torch.int64], ids=id_of)
@pytest.mark.parametrize("mode", ["m", "n", "k"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_kind_of_offs(backend, mode, offs_dtype, offs_stride):
    run(backend, replace(BASE[mode], offs_dtype=offs_dtype, offs_stride=offs_stride))


@pytest.mark.parametrize("extents", [(0, 8, 8), (8, 0, 8), (8, 8, 0), (0, 0, 0), (1, 1, 1), (1, 40, 1), (40, 1, 1)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_and_single_extents(backend, mode, extents):
    M, N, K = extents
    case = replace(BASE[mode], M=M, N=N, K=K)
    run(backend, case)
    run(backend, replace(case, layout_a="every_other", layout_b="unaligned", layout_out="unaligned"))
    if mode != "n":
        run(backend, replace(case, bias=torch.float32))


@pytest.mark.parametrize("edge", [15, 16, 17, 31, 33])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_boundary_tiles_at_every_position(backend, mode, edge):
    """Each extent in turn one short of whole tiles, whole, and one past, aligned and not."""
    for extents in ((edge, 32, 32), (32, edge, 32), (32, 32, edge)):
        M, N, K = extents
        run(backend, replace(BASE[mode], sizes=(edge, 32 - edge % 16), M=M, N=N, K=K, tail_size=edge % 16))


@pytest.mark.parametrize("mode", ["m", "n", "k"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_more_than_a_thousand_groups(backend, mode):
    """In the interpreter a row for one group in 21 and none for the rest, and fewer groups in mode "k", each of which
    has a tile to write; a row for each group with torch, and in the GPU tests."""
    sizes = tuple(int(g % 21 == 20) for g in range(1025)) if backend == "triton" else (1,) * 1025
    if mode == "k":
        sizes = sizes[: 1025 if backend == "torch" else 129]
    run(backend, replace(BASE[mode], sizes=sizes, M=3, N=3, K=3, tail_size=2))


def test_a_thousand_matrices():
    case = replace(BASE["batch"], sizes=(1,) * 1025, M=2, N=2, K=2)
    run("torch", case)
    run("triton", replace(case, sizes=(1,) * 129))


# ---- bias


@pytest.mark.parametrize("layout", STRIDES)
@pytest.mark.parametrize("mode", ["m", "k", "batch"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bias_of_every_layout(backend, mode, layout):
    i = STRIDES.index(layout)
    dtype = DTYPES[i % 3]
    bias = (dtype, torch.float32)[(i + MODES.index(mode)) % 2]
    run(backend, replace(BASE[mode], dtype=dtype, bias=bias, layout_bias=layout, layout_out="padded"))


# ---- configurations

CONFIGS = [
    None,
    GemmConfig(16, 32, 64, group_m=1),
    GemmConfig(64, 16, 32, group_m=3),
    GemmConfig(32, 32, 16, store_parts=2),
    GemmConfig(16, 16, 16, num_warps=1, num_stages=1, programs_per_sm=2),
    GemmConfig(16, 32, 32, store_parts=2, schedule="dynamic"),
]


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "unaligned"])
@pytest.mark.parametrize(
    "mode, config",
    [(m, c) for m in MODES for c in CONFIGS if m != "k" or c is None or c.schedule != "dynamic"],  # "k" has none
    ids=lambda value: "chosen" if value is None else value if isinstance(value, str) else f"{value.block}",
)
def test_configurations_agree(mode, config, aligned):
    layout = "row" if aligned else "unaligned"
    changes = dict(M=40, N=40) if mode == "k" else dict(M=50, N=40, K=24)
    run("triton", replace(BASE[mode], layout_a=layout, layout_b=layout, layout_out=layout, **changes), config=config)


@pytest.mark.parametrize("mode", ["m", "n", "k"])
def test_groups_with_as_many_tiles_as_swizzle_strips_have_rows_and_more(mode):
    case = replace(BASE[mode], sizes=(80, 33, 1), M=80, N=32, K=16)
    for group_m in (1, 3):
        run("triton", case, config=GemmConfig(16, 16, 16, group_m=group_m))


# ---- ends that are wrong


@pytest.mark.parametrize(
    "ends",
    [[40, 20, 60], [-5, 10, 20], [10, 20, 10**6], [10, 20, -(2**31)], [2**31 - 1] * 3, [60, 0, 60], [61, 62, 64]],
    ids=str,
)
@pytest.mark.parametrize("mode", ["m", "n", "k"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_ends_never_lead_out_of_the_result(backend, mode, ends):
    """The result is unspecified; memory around it and the operands is as it was."""
    how = ("padded", "unaligned")[sum(ends) % 2]
    case = replace(BASE[mode], sizes=(20, 20, 20), tail_size=0, layout_out=how)
    operands = build(case, runtime.device())
    operands.arguments["offs"] = torch.tensor(ends, dtype=torch.int32, device=runtime.device())
    grouped_mm(operands.mat_a, operands.mat_b, **operands.arguments, backend=backend, config=SMALL)
    operands.verify_memory()


# ---- calls in turn


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_calls_of_alike_shapes_with_other_contents_do_not_mix(backend, mode):
    """What is kept from call to call is not the contents: same shapes, other values, ends, outputs, alignments."""
    other = (5, 16, 0, 17)
    for seed, layout in enumerate(["row", "unaligned", "row", "padded", "row"]):
        sizes = RAGGED if seed % 2 else other
        run(backend, replace(BASE[mode], sizes=sizes, layout_a=layout, layout_out=layout, seed=seed))


@pytest.mark.parametrize("mode", MODES)
def test_backends_agree_bit_for_bit_on_whole_numbers(mode):
    case = replace(BASE[mode], out_dtype=torch.bfloat16)
    assert torch.equal(run("torch", case), run("triton", case))


def test_auto_on_cpu_tensors_computes_with_torch(monkeypatch):
    if runtime.mode() != "gpu":
        # The kernels must not be reached: the interpreter would take minutes for problems of ordinary size.
        monkeypatch.setattr(runtime, "check_can_launch", None)
    a, b = integers((300, 100), generator=1), integers((3, 100, 200), generator=2)
    offs = torch.tensor([100, 100, 300])
    assert torch.equal(grouped_mm(a, b, offs=offs), reference.grouped_mm(a, b, offs, torch.float16))


def test_mode_k_takes_operands_whose_tails_differ():
    a, b = integers((4, 30), generator=1), integers((25, 5), generator=2)
    offs = torch.tensor([10, 20])
    a, b, offs = (t.to(runtime.device()) for t in (a, b, offs))
    wanted = reference.grouped_mm(a[:, :25], b, offs, torch.float16)
    for backend in BACKENDS:
        assert torch.equal(grouped_mm(a, b, offs=offs, backend=backend, config=SMALL), wanted)


def test_a_new_total_prepares_no_new_launch():
    """Nor does its gradient: a batch of another size must not cost a preparation, which takes a hundred times as long
    as the call."""
    execute.plans.clear()
    device = runtime.device()
    weights = integers((4, 24, 40), torch.float32, 1, device=device).requires_grad_()
    for total in (260, 257, 262, 268):  # of one quarter of an octave
        a = integers((total, 24), torch.float32, total, device=device).requires_grad_()
        ends = torch.tensor([100, 100, 150, 200], dtype=torch.int32, device=device)
        out = grouped_mm(a, weights, offs=ends, backend="triton")
        out.backward(integers((total, 40), torch.float32, 2, device=device))
        assert torch.equal(out[:100], a[:100] @ weights[0])
        assert len(execute.plans) == 3
