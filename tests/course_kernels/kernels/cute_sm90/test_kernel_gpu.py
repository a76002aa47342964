"""The Hopper kernel on 8-bit operands, configuration by configuration: its results, and what it keeps of a long sum.

wgmma keeps few bits of a sum of 8-bit floats, so the kernel adds a block's sums in float32 (``multiply_apart``). What
both ways lose is computed here step by step, to show that these tests tell them apart; on a GPU the kernel itself is
built both ways.
"""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from course_kernels.kernels.cute_sm90.config import CONFIGS_8_BIT
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.testing import assert_grouped_exact
from course_kernels.testing.grouped_cases import GroupedCase, build
from course_kernels.testing.tolerance import compare, rounded_bound
from cute_calls import kept_kernel
from hopper_gpu import hopper_gpu

hopper = pytest.mark.gpu
FP8, FORM = torch.float8_e4m3fn, Form("m", "k", 1)
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Boundary tiles of one row, of a whole tile, and of a row more; more groups than a warp has lanes.
SIZES = {"some": (0, 300, 1, 128, 0, 129, 77, 0), "many": tuple(i % 7 * (i % 3) for i in range(70)), "one": (5,)}
STEP = 32  # of K, which one wgmma multiplies
KEPT = 13  # bits behind the leading one of its largest addend


@pytest.fixture
def device():
    return hopper_gpu()


def id_of(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else getattr(value, "name", None)


# ---- what sums lose


def lossy_sums(a: torch.Tensor, b: torch.Tensor, block: int) -> torch.Tensor:
    """a @ b as wgmma adds, in sums of ``block`` of K that are added in float32: each addend of a step, the sum so far
    among them, loses what lies more than KEPT bits behind the largest one's leading bit."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], block):
        part = torch.zeros(1, *total.shape, dtype=torch.float64)
        for k in range(start, min(start + block, a.shape[1]), STEP):
            products = a[:, k : k + STEP, None].double() * b[None, k : k + STEP].double()
            addends = torch.cat([part, products.transpose(0, 1)])
            unit = torch.exp2(torch.frexp(addends.abs().amax(0)).exponent.double() - 1 - KEPT)
            part = ((addends / unit).trunc() * unit).sum(0, keepdim=True)
        total += part[0].float()
    return total


def sums_and_bound(a: torch.Tensor, b: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact a @ b in float64, and how far off it the sums of ``block`` of K may be that float32 adds up.

    A step has STEP products and the sum so far to add, and each, like the sum that it leaves, loses less than
    2**-KEPT of the largest of them.
    """
    shape, wide = (a.shape[0], b.shape[1]), dict(dtype=torch.float64, device=a.device)
    total, bound = torch.zeros(shape, **wide), torch.zeros(shape, **wide)
    for start in range(0, a.shape[1], block):
        part, off = torch.zeros(shape, **wide), torch.zeros(shape, **wide)
        for k in range(start, min(start + block, a.shape[1]), STEP):
            x, y = a[:, k : k + STEP].double(), b[k : k + STEP].double()
            largest = torch.maximum(x.abs().amax(1)[:, None] * y.abs().amax(0), part.abs())
            part += x @ y
            off += (STEP + 2) * 2.0**-KEPT * (torch.maximum(largest, part.abs()) + off)
        total += part
        bound += off
        bound += 2.0**-24 * (total.abs() + bound)
    return total, bound


def positive_integers(shape, seed: int, device="cpu") -> torch.Tensor:
    """1 to 4: a block's sums stay within 14 bits, those over a long K do not."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 5, shape, generator=generator).float().to(FP8).to(device)


def test_what_blocks_lose_and_what_one_long_sum_loses():
    K, block = 7168, CONFIGS_8_BIT[0].tile_k
    a, b = positive_integers((8, K), 1), positive_integers((K, 8), 2)
    exact = a.double() @ b.double()
    assert exact.max() < 2**24, "float32 adds the blocks without a loss"
    assert torch.equal(lossy_sums(a, b, block).double(), exact)
    assert (1 - lossy_sums(a, b, K) / exact).min() > 0.05

    # Of numbers with more bits a block loses some, too: 0.0001 where one sum loses 0.13, and the bound is 0.01.
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.rand(shape, generator=generator).add(0.5).to(FP8) for shape in ((8, K), (K, 8)))
    exact, bound = sums_and_bound(a, b, block)
    assert bound.max() < 0.011 * exact.min()
    assert ((lossy_sums(a, b, block) - exact).abs() <= bound).all()
    assert ((lossy_sums(a, b, K) - exact).abs() > 10 * bound).all()


# ---- on Hopper


@functools.cache
def compiled(config, out_dtype, scaled):
    """The kernel for one configuration."""
    return kept_kernel(config, "float8_e4m3fn", id_of(out_dtype), scaling="lines" if scaled else "none")


def multiply(config, case: GroupedCase, scaled: bool, device, depth: int | None = None):
    """A case's result and its operands by name. The result lies over NaN in memory that is watched, twice: the second
    time it is the same bit for bit. ``depth``: how much of K is multiplied, where not all."""
    made = build(case, device)
    out, offs = made.arguments["out"], made.arguments["offs"]
    a, b = made.mat_a[:, :depth], made.mat_b[:, :depth]
    scales = {name: made.arguments[name] for name in ("scale_a", "scale_b") if scaled}
    results = []
    for _ in range(2):
        out.fill_(float("nan"))
        compiled(config, out.dtype, scaled)(a, b, out, offs, *scales.values())
        results.append(out.clone())
    assert torch.equal(*(result.nan_to_num(77.0) for result in results)), "two runs differ"
    made.verify_memory()
    return out, dict(mat_a=a, mat_b=b, offs=offs, **scales)


def check_normal(config, out, mat_a, mat_b, offs, scale_a=None, scale_b=None):
    """Compare with sums in float64; the tail is zeros."""
    start = 0
    for g, end in enumerate(offs.tolist()):
        a, b, part = mat_a[start:end], mat_b[g], out[start:end]
        exact, bound = sums_and_bound(a, b, config.tile_k)
        magnitude = a.double().abs() @ b.double().abs()
        if scale_a is not None:
            factors = scale_a[start:end, None].double() * scale_b[g].double()
            exact, magnitude, bound = exact * factors, magnitude * factors, bound * factors
            # Two multiplications in float32.
            bound += 2 * 2.0**-23 * (exact.abs() + bound)
        compare(part, exact, rounded_bound(exact, bound, magnitude, a.shape[1], out.dtype), f"group {g}")
        start = end
    assert not out[start:].any()


@hopper
@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "not scaled"])
@pytest.mark.parametrize("out_dtype", OUT_DTYPES, ids=id_of)
@pytest.mark.parametrize("config", CONFIGS_8_BIT, ids=id_of)
def test_results(device, config, out_dtype, scaled):
    for sizes in SIZES.values():
        # N and K are multiples of no tile's, and the depth is one of 8 alone; then one block of the least extents.
        for N, K, depth in ((264, 208, 200), (8, 16, None)):
            case = GroupedCase(
                "m", sizes, N=N, K=K, dtype=FP8, out_dtype=out_dtype, layout_a="pitched", layout_b="col",
                layout_out="pitched", tail_size=61,
            )  # fmt: skip
            out, operands = multiply(config, case, scaled, device, depth)
            assert_grouped_exact(out, **operands)
            out, operands = multiply(config, dataclasses.replace(case, values="normal"), scaled, device, depth)
            check_normal(config, out, **operands)


@hopper
@pytest.mark.parametrize("config", CONFIGS_8_BIT, ids=id_of)
def test_no_groups_rows_reach_another_group(device, config):
    made = build(GroupedCase("m", SIZES["some"], N=264, K=208, dtype=FP8, layout_b="col", layout_out="row"), device)
    a, out = made.mat_a.clone(), made.arguments["out"]
    a[300:301] = torch.full((), float("nan"), device=device).to(FP8)  # the group between two large ones
    offs, scales = made.arguments["offs"], (made.arguments["scale_a"], made.arguments["scale_b"])
    compiled(config, out.dtype, True)(a, made.mat_b, out, offs, *scales)
    assert out[300].isnan().all()
    a[300] = 0
    out[300] = 0
    assert_grouped_exact(out, a, made.mat_b, offs, scale_a=scales[0], scale_b=scales[1])


def long_operands(K: int, device):
    """A (133, K) in three groups, one empty, B (3, K, 264) and offs."""
    offs = torch.tensor([130, 130, 133], dtype=torch.int32, device=device)
    return positive_integers((133, K), 1, device), positive_integers((3, 264, K), 2, device).mT, offs


def exact_sums(a, b, offs):
    """Of two filled groups around an empty one."""
    first = int(offs[0])
    return torch.cat([a[:first].double() @ b[0].double(), a[first:].double() @ b[2].double()])


@hopper
@pytest.mark.parametrize("K", [7168, 16384])
@pytest.mark.parametrize("config", CONFIGS_8_BIT, ids=id_of)
def test_long_sums_keep_their_bits(device, config, K):
    a, b, offs = long_operands(K, device)
    out = torch.full((133, 264), float("nan"), device=device)
    compiled(config, out.dtype, False)(a, b, out, offs)
    assert torch.equal(out.double(), exact_sums(a, b, offs))


@pytest.fixture
def one_long_sum(monkeypatch):
    """The kernel with all of K in one sum, for tiles that one product covers."""
    pytest.importorskip("cutlass", reason="needs the cutlass extra")
    import cute_one_long_sum as instead
    from course_kernels.kernels.cute_sm90 import compilation, kernel

    monkeypatch.setattr(kernel, "multiply_apart", instead.multiply_in_one_sum)
    return compilation


def test_one_long_sum_compiles(one_long_sum, tmp_path):
    from cutlass import cute
    from cutlass.base_dsl.compiler import DumpDir

    options = (cute.KeepPTX(True), DumpDir(str(tmp_path)))
    ptx = one_long_sum.compile_for(CONFIGS_8_BIT[-1], FORM, "float8_e4m3fn", "float32", options=options).__ptx__
    assert "wgmma" in ptx
    assert "add.f32" not in ptx, "nothing is added but by wgmma"


@hopper
def test_one_long_sum_would_lose_bits(device, one_long_sum):
    """The loss that is computed above is there, and ``test_long_sums_keep_their_bits`` would see it."""
    a, b, offs = long_operands(7168, device)
    out = torch.full((133, 264), float("nan"), device=device)
    kernel = one_long_sum.compile_for(CONFIGS_8_BIT[-1], FORM, "float8_e4m3fn", "float32")
    kernel(a, b, out, offs, 132, None, None, None)
    exact = exact_sums(a, b, offs)
    wrong = out.double() != exact
    assert wrong.float().mean() > 0.9
    assert ((out - exact).abs() < 0.25 * exact).all(), "it loses bits, and computes the product"
