"""More groups than kernels compare with at once: the same results, and code that does not depend on their number."""

from __future__ import annotations

import functools

import pytest
import torch

from course_kernels import (
    GemmConfig,
    deepgemm,
    group_sums,
    grouped_gemm_jagged,
    grouped_gemm_jagged_persistent,
    grouped_mm,
    quantize_1x128,
    runtime,
)
from course_kernels.codegen import Build, compile_many
from course_kernels.codegen.masked import build_masked
from course_kernels.codegen.packed import build_packed, specialize
from course_kernels.engine import whole_blocks
from course_kernels.fp8.quantize import quantize_whole_blocks
from course_kernels.jagged import triton_kernels
from course_kernels.kernels import codes, contiguous, jagged, quantize
from course_kernels.kernels import group_sums as sums
from course_kernels.kernels.language import tl, triton
from course_kernels.packed import group_sums as packed_sums

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
DEVICE = runtime.device()
MANY = 2**20


@pytest.fixture
def searching(monkeypatch):
    """Eight groups are many."""
    monkeypatch.setattr(codes, "MOST_COMPARED", 7)


def random_ends(groups: int, most: int, seed: int = 0) -> torch.Tensor:
    """Ends of groups of which a third are empty, and one is large."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, most + 1, (groups,), generator=generator)
    sizes *= torch.randint(0, 3, (groups,), generator=generator) > 0
    sizes[groups // 3] += 150
    return sizes.cumsum(0).to(torch.int32).to(DEVICE)


def integers(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(torch.float16).to(DEVICE)


# ---- the searches, among 2**20 groups


@triton.jit
def search_kernel(ends_ptr, places_ptr, found_ptr, total, G, WHICH: tl.constexpr):
    place = tl.load(places_ptr + tl.program_id(0))
    if WHICH == "rows of tiles":
        g = contiguous.search_group(ends_ptr, place, total, G, 16)
    elif WHICH == "jagged":
        g = jagged.search_group(ends_ptr, place, total, G, 16)
    elif WHICH == "items":
        g = sums.search_group(ends_ptr, place, total, G, 256)
    elif WHICH == "columns":
        g = quantize.search_column(ends_ptr, place, total, G)
    else:
        g = quantize.search_whole_block(ends_ptr, place, G)
    tl.store(found_ptr + tl.program_id(0), g)


def firsts(ends: torch.Tensor, step: int) -> torch.Tensor:
    """Where each group's numbers begin, and those of what follows the last one."""
    starts = torch.cat([ends.new_zeros(1), ends]).long()
    return starts // step + torch.arange(len(starts), device=starts.device)


def last_at(numbers: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(numbers, places, right=True) - 1


def places_of_items(ends: torch.Tensor) -> torch.Tensor:
    lasts = (ends.long() + 255).div(256, rounding_mode="floor").sub(1).clamp(min=0)
    return lasts + torch.arange(len(ends), device=ends.device)


WHOLE = 128  # whole blocks: ends are multiples of it
SEARCHES = {
    "rows of tiles": lambda ends, at: last_at(firsts(ends, 16)[:-1], at),
    "jagged": lambda ends, at: last_at(firsts(ends, 16), at),
    "items": lambda ends, at: torch.searchsorted(places_of_items(ends), at),
    "columns": lambda ends, at: last_at(firsts(ends, 128), at),
    "whole blocks": lambda ends, at: torch.searchsorted(ends.long(), at * WHOLE, right=True),
}


@pytest.mark.parametrize("which", SEARCHES)
def test_search_among_a_million_groups(which):
    ends = random_ends(MANY, 40) * (WHOLE if which == "whole blocks" else 1)
    total = int(ends[-1]) + 100
    generator = torch.Generator().manual_seed(3)
    step = {"rows of tiles": 16, "jagged": 16, "items": 256}.get(which, 128)
    bound = int(ends[-1]) // step + (MANY if which != "whole blocks" else 0)
    places = torch.randint(0, bound, (40,), generator=generator)
    places = torch.cat([places, torch.tensor([0, 1, bound - 1])]).to(DEVICE)
    offsets = torch.cat([ends.new_zeros(1), ends]) if which == "jagged" else ends
    found = torch.full_like(places, -7)
    with runtime.interpreting() if DEVICE.type == "cpu" else torch.cuda.device(DEVICE):
        search_kernel[(len(places),)](offsets, places, found, total, MANY, WHICH=which)
    assert torch.equal(found, SEARCHES[which](ends, places))


# ---- results


@pytest.mark.parametrize("seed", range(3))
def test_products_that_search_are_those_that_compare(searching, seed):
    ends = random_ends(8 + 9 * seed, 9, seed)
    groups, total = len(ends), int(ends[-1]) + 21
    rows, weights, bias = integers(total, 24), integers(groups, 24, 40 + seed), integers(groups, 40 + seed)
    expected = grouped_mm(rows, weights, offs=ends, bias=bias, backend="torch")
    dynamic = GemmConfig(32, 32, 32, 4, 2, 3, schedule="dynamic")
    for config in (None, GemmConfig(16, 16, 32, 4, 2, 8), dynamic):
        out = grouped_mm(rows, weights, offs=ends, bias=bias, backend="triton", config=config)
        assert torch.equal(out, expected), config
    columns = rows.mT.contiguous().mT
    assert torch.equal(grouped_mm(columns, weights, offs=ends, bias=bias, backend="triton"), expected)
    lines = weights.mT.contiguous()
    assert torch.equal(
        grouped_mm(lines, rows.mT, offs=ends, backend="triton"), grouped_mm(lines, rows.mT, offs=ends, backend="torch")
    )
    assert torch.equal(group_sums(rows, ends, backend="triton"), group_sums(rows, ends, backend="torch"))


def test_masked_rows_without_a_search(searching):
    counts = torch.tensor([0, 20, 17, -1, 1, 99, 0, 16, 3, 5], dtype=torch.int32, device=DEVICE)
    x, w = integers(10, 20, 24), integers(10, 40, 24, seed=2)
    y, expected = (torch.full((10, 20, 40), 7.0, dtype=torch.float16, device=DEVICE) for _ in range(2))
    deepgemm(x, w, y, counts, backend="triton")
    deepgemm(x, w, expected, counts, backend="torch")
    assert torch.equal(y, expected)


@pytest.mark.parametrize("function", [grouped_gemm_jagged, grouped_gemm_jagged_persistent])
def test_jagged_products(searching, function):
    ends = random_ends(30, 9)
    offsets = torch.cat([ends.new_zeros(1), ends])
    A, B = integers(int(ends[-1]), 24), integers(24, 70)
    out = function(A, B, offsets, implementation="triton")
    assert torch.equal(out.float(), A.float() @ B.float())


@pytest.mark.parametrize("kernel", ["simple", "persistent"])
def test_jagged_tails_are_zero(searching, kernel):
    offsets = torch.cat([torch.zeros(1, dtype=torch.int32, device=DEVICE), random_ends(30, 9)])
    A, B = integers(int(offsets[-1]) + 90, 24), integers(24, 70)
    out = triton_kernels.multiply(kernel, A, B, offsets)
    inside = torch.arange(len(A), device=DEVICE) < offsets[-1]
    assert torch.equal(out.float(), torch.where(inside[:, None], A.float() @ B.float(), 0))


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("function", [quantize_1x128, quantize_whole_blocks])
def test_quantized_groups(searching, function, layout):
    ends = random_ends(30, 60)
    x = torch.randn(5, int(ends[-1]) + 50, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    x = x if layout == "row" else x.mT.contiguous().mT
    found, expected = (function(x, offs=ends, backend=backend) for backend in ("triton", "torch"))
    for got, want in zip(found, expected):
        assert torch.equal(got.float().nan_to_num(9e9), want.float().nan_to_num(9e9))
    if function is quantize_1x128:
        packed = whole_blocks.pack(found[0], ends, found[1])
        for got, want in zip(packed, quantize_whole_blocks(x, ends, backend="torch")):
            used = int(packed.ends[-1]) // (1 if got is packed.values else 128)
            got, want = (t[..., :used] if t.dim() > 1 else t for t in (got, want))
            assert torch.equal(got.float(), want.float())


def test_more_groups_than_are_compared(monkeypatch):
    if runtime.mode() == "interpreter":  # which takes 4 ms for a group
        monkeypatch.setattr(codes, "MOST_COMPARED", 255)
    groups = codes.MOST_COMPARED + 1
    sizes = torch.zeros(groups, dtype=torch.int32)
    sizes[::97] = 3
    sizes[[1, -1]] = 40
    ends = sizes.cumsum(0).to(torch.int32).to(DEVICE)
    rows, weights = integers(int(ends[-1]) + 20, 16), integers(1, 16, 16).expand(groups, 16, 16)
    out = grouped_mm(rows, weights, offs=ends, backend="triton")
    assert torch.equal(out[: ends[-1]].float(), rows[: ends[-1]].float() @ weights[0].float())
    assert not out[ends[-1] :].any()
    found, expected = (group_sums(rows, ends, backend=backend) for backend in ("triton", "torch"))
    assert torch.equal(found, expected)


# ---- code


def build_jagged(kernel: str, groups: int) -> Build:
    a, b = torch.empty(512, 512, dtype=torch.bfloat16), torch.empty(512, 512, dtype=torch.bfloat16)
    offsets = torch.empty(groups + 1, dtype=torch.int32)
    config = triton_kernels.choose_config(512, 8, 512, 2)
    arguments = triton_kernels.launch_arguments(a, b, offsets, torch.empty_like(a), config, "ieee")
    function = triton_kernels.KERNELS[kernel]
    name = f"{jagged.__name__}:{function.fn.__name__}"
    return Build(name, *specialize(function, arguments), config.num_warps, config.num_stages)


def build_sums(groups: int) -> Build:
    matrix, offs = torch.empty(4096, 512, dtype=torch.bfloat16), torch.empty(groups, dtype=torch.int32)
    launch = packed_sums.prepare(matrix, offs, torch.empty(groups, 512), False)[0]
    return Build(f"{sums.__name__}:{launch.kernel}", *specialize(getattr(sums, launch.kernel), launch.arguments))


def build_quantizer(groups: int, ends: bool) -> Build:
    signature = {"x_ptr": "*bf16", "q_ptr": "*fp8e4nv", "scale_ptr": "*fp32", "offs_ptr": "*i32", "ends_ptr": "*i32"}
    signature |= dict.fromkeys(("lines", "depth", "columns", "G"), "i32")
    signature |= {f"stride_{tensor}{dim}": "i32" for tensor in "xqs" for dim in "blk"}
    constants = {"RESTART": True, "BLOCK_L": 32, "POWER_OF_TWO": False, "ROUND": False}
    constants["GROUPS"] = codes.compared_groups(groups + 1)
    if not ends:
        constants["ends_ptr"] = signature.pop("ends_ptr") and None
    return Build(f"{quantize.__name__}:quantize_lines_kernel", signature, constants)


BUILDS = {
    "mode m": functools.partial(build_packed, "contiguous"),
    "mode n": functools.partial(build_packed, "contiguous", mode="n"),
    "masked": build_masked,
    "jagged": functools.partial(build_jagged, "simple"),
    "jagged, persistent": functools.partial(build_jagged, "persistent"),
    "sums": build_sums,
    "columns of groups": functools.partial(build_quantizer, ends=False),
    "whole blocks": functools.partial(build_quantizer, ends=True),
}


@pytest.mark.parametrize("which", BUILDS)
def test_code_does_not_depend_on_the_number_of_groups(which):
    build = BUILDS[which]
    many, more = build(groups=codes.MOST_COMPARED + 1), build(groups=20_000)
    changed = {name for name in many.constexprs if many.constexprs[name] != more.constexprs[name]}
    # The configuration of few rows a group may be another.
    assert not changed - {"BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "STORE_PARTS"}
    assert not {"GROUPS", "BLOCK_G"} & changed
    few, many = compile_many([(build(groups=8), "sm_90"), (many, "sm_90")])
    assert len(many.asm["ptx"]) < 1.4 * len(few.asm["ptx"])
    assert not many.spills
