"""The Hopper kernel with a factor for each block of 128 along K: what it compiles to, and on Hopper its results."""

from __future__ import annotations

import functools
import re

import pytest
import torch

from course_kernels.kernels.cute_sm90.config import (
    CONFIGS_BLOCK_SCALED,
    CONFIGS_BLOCK_SCALED_ALONG_K,
    COOPERATIVE,
    LARGE_BLOCK_SCALED,
    PINGPONG,
    CuteConfig,
    configs_for,
)
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.testing import integers, reference
from cute_calls import kept_kernel
from cute_forms import form_for
from hopper_gpu import hopper_gpu
from in_flight import disassembled, follow, moves_between_products

hopper = pytest.mark.gpu
FP8, FLOAT8 = torch.float8_e4m3fn, "float8_e4m3fn"
BLOCKS, BLOCKS_ALONG_K = (Form(along, "k", 1, scaling="blocks") for along in "mk")
# What is shipped, and other ways to cut tiles: columns in two parts, halves of blocks of columns, two slabs of rows.
EVERY = (
    *CONFIGS_BLOCK_SCALED,
    CuteConfig(128, 64, 128, 1, 4, COOPERATIVE),
    CuteConfig(128, 128, 128, 2, 4, COOPERATIVE, last_tile_n=64),
    CuteConfig(128, 64, 128, 2, 4, PINGPONG),
    CuteConfig(64, 192, 128, 1, 6, PINGPONG),
    CuteConfig(128, 192, 128, 2, 4, COOPERATIVE),
    CuteConfig(128, 192, 128, 2, 5, COOPERATIVE, last_tile_n=128),
)
# With a factor for each column: groups along K.
EVERY_ALONG_K = (
    *CONFIGS_BLOCK_SCALED_ALONG_K,
    CuteConfig(128, 192, 128, 1, 4, COOPERATIVE, last_tile_n=64),
    CuteConfig(64, 128, 128, 2, 6, PINGPONG),
    CuteConfig(256, 64, 128, 1, 4, COOPERATIVE),
)


def name_of(config):
    return config.name


@pytest.fixture(scope="module")
def code_of(code_for, tmp_path_factory):
    """The PTX of a configuration, and its machine code, disassembled once."""
    folder = tmp_path_factory.mktemp("code")

    @functools.cache
    def disassembled_once(cubin):
        return disassembled(cubin, folder)

    def found(config, **fields):
        code = code_for(config, form_for(FLOAT8, **fields), FLOAT8)
        return code.ptx, disassembled_once(code.cubin)

    return found


# A configuration for any K; of those that are shipped, the kernel for sums over whole rounds of stages, too.
BOTH = [
    *((config, False) for config in EVERY),
    *((config, True) for config in CONFIGS_BLOCK_SCALED if config.in_rounds(BLOCKS)),
]


def both_of(value):
    return value.name if isinstance(value, CuteConfig) else "whole rounds" * value or "any K"


@pytest.mark.parametrize(("config", "whole"), BOTH, ids=both_of)
def test_machine_code(code_of, config, whole):
    ptx, sass = code_of(config, scaling="blocks", whole_rounds=whole)
    # Each stage of a round has code of its own, and so has what is left of the last round.
    copies = config.stages + (not whole) if config.in_rounds(BLOCKS) else 1
    sums = sum(each.tile_m // config.sharing_groups * each.tile_n // 128 for each in config.shapes)
    # An addition with a factor is one instruction.
    assert ptx.count("fma.rn.f32") == copies * sums
    assert "add.f32" not in ptx
    # Factors: two rows' of each 64, and those of blocks of columns, of a tile's first block and then of each next one.
    slabs, halves = config.tile_m // 64 // config.sharing_groups, config.scale_cols < 128
    numbers = sum(2 * slabs + -(-each.tile_n // 128) + (halves and each.tile_n == 128) for each in config.shapes)
    assert ptx.count("ld.global.b32") == (copies + 1) * numbers + 11, "eleven times ends of groups"
    assert "cp.async.ca" not in ptx
    # Nothing spills, and sums stay in flight where they should: ptxas has added no waits.
    assert ".local" not in ptx
    assert not re.search(r"\b(LDL|STL)\b", sass)
    assert sass.count("WARPGROUP.DEPBAR") == ptx.count("wgmma.wait_group")
    assert follow(sass) == (1, [])
    # None but the last waits of the loading warp, for stages that are still read, let a warp sleep.
    assert ptx.count(", 10000000;") == config.stages


@pytest.mark.parametrize("config", EVERY_ALONG_K, ids=name_of)
def test_machine_code_along_k(code_of, config):
    """A factor for each column: as many more multiplications as sums, and a copy for each 32 columns. Addresses of
    operands are in uniform registers."""
    ptx, sass = code_of(config, scaling="blocks", along="k")
    sums = sum(each.tile_m // config.sharing_groups * each.tile_n // 128 for each in config.shapes)
    assert ptx.count("fma.rn.f32") == sums
    assert sums <= ptx.count("mul.f32") <= sums + 1, "one of the zeros' pace"
    assert "add.f32" not in ptx
    assert ptx.count("cp.async.ca.shared.global") == (config.tile_m + config.tile_n) // 32
    assert ".local" not in ptx
    assert not re.search(r"\b(LDL|STL)\b", sass)
    assert sass.count("WARPGROUP.DEPBAR") == ptx.count("wgmma.wait_group")
    assert follow(sass) == (1, [])
    assert moves_between_products(sass) == []
    assert ptx.count(", 10000000;") == config.stages + 1, (
        "the loading warp's last waits, and those of the factors' warp"
    )
    # Both operands as they are, in two dimensions; the result with the group as its third dimension.
    assert set(re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\.shared", ptx)) == {"2"}
    assert set(re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\.global", ptx)) == {"3"}


def test_sums_in_flight_are_found(code_of):
    """What the test above looks for is seen: without its waits, machine code adds sums that are not there yet."""
    _, sass = code_of(CONFIGS_BLOCK_SCALED[-1], scaling="blocks")
    assert follow(sass) == (1, [])
    assert any(each.startswith("FFMA") for each in follow(sass.replace("WARPGROUP.DEPBAR", "NOP")).touching)


def test_what_cannot_be_built_is_refused(code_of):
    with pytest.raises(
        ValueError, match="config: tile_k is 128, the depth of a block, where blocks have scales, got 256"
    ):
        code_of(CuteConfig(64, 64, 256, 1, 2, PINGPONG), scaling="blocks")
    with pytest.raises(ValueError, match="config: whole_rounds is False where a loop over K has no rounds of stages"):
        code_of(CONFIGS_BLOCK_SCALED[-1], scaling="blocks", whole_rounds=True)


def test_configurations():
    assert configs_for(BLOCKS) == CONFIGS_BLOCK_SCALED
    assert LARGE_BLOCK_SCALED in CONFIGS_BLOCK_SCALED
    assert all(config.why_not(BLOCKS) is None for config in EVERY)
    assert [config.scale_cols for config in EVERY[:4]] == [128, 128, 128, 64]
    # Where it pays to know K: loops of cooperative warp groups over whole rounds of stages.
    assert [LARGE_BLOCK_SCALED.whole_rounds(K, BLOCKS) for K in (384, 392, 512, 520, 7168)] == [
        False,
        True,
        True,
        False,
        True,
    ]
    assert not any(config.whole_rounds(1024, BLOCKS) for config in EVERY if config.schedule == PINGPONG)
    assert not LARGE_BLOCK_SCALED.whole_rounds(1024, BLOCKS_ALONG_K)
    assert not LARGE_BLOCK_SCALED.whole_rounds(1024, Form("m", "k", 1))
    assert CuteConfig(128, 128, 128, last_tile_n=64).scale_cols == 64
    # Factors of each column take room, here from the blocks of C that are staged.
    wide, few = CuteConfig(128, 192, 128, 2, 4, COOPERATIVE), CuteConfig(64, 128, 128, 1, 8, PINGPONG)
    blocks = [tuple(map(each.store_blocks, (BLOCKS, BLOCKS_ALONG_K))) for each in (wide, few)]
    assert blocks == [(2, 2), (2, 1)]
    assert few.shared_bytes(BLOCKS) == few.shared_bytes(Form("m", "k", 1))
    assert [each.product_cols(BLOCKS) for each in EVERY[-2:]] == [192, 192]
    assert LARGE_BLOCK_SCALED.product_cols(BLOCKS) == 128


# ---- on Hopper


@pytest.fixture
def device():
    return hopper_gpu()


@functools.cache
def compiled(config, out_dtype, **fields):
    return kept_kernel(config, FLOAT8, str(out_dtype).removeprefix("torch."), **fields)


def factors(shape, seed, how, device):
    """Powers of two, NaN around them."""
    values = 2.0 ** integers(shape, torch.float32, seed, device=device)
    if how == "outer":
        return values.mT.contiguous().mT
    if how == "gaps":
        wide = torch.full((*shape[:-1], 2 * shape[-1] + 1), torch.nan, device=device)
        wide[..., 1::2] = values
        return wide[..., 1::2]
    return values


def operands(sizes, N, K, how, device, tail=61):
    total, G, blocks = sum(sizes) + tail, len(sizes), -(-K // 128)
    pitch = -(-K // 16) * 16
    a = torch.zeros(total, pitch, dtype=FP8, device=device)[:, :K]
    b = torch.zeros(G, N, pitch, dtype=FP8, device=device)[:, :, :K]
    a.copy_(integers(a.shape, torch.float32, 1, device=device))
    b.copy_(integers(b.shape, torch.float32, 2, device=device))
    scale_a, scale_b = factors((total, blocks), 3, how, device), factors((G, blocks, -(-N // 128)), 4, how, device)
    offs = torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)
    a[offs[-1] :], scale_a[offs[-1] :] = torch.full((), torch.nan, device=device).to(FP8), torch.nan
    return a, b.mT, offs, scale_a, scale_b


def exact(a, b, offs, scale_a, scale_b):
    wide_a = reference.dequantize(a, scale_a)
    wide_b = reference.dequantize(b.mT, scale_b.mT, 128)
    return reference.grouped_mm(wide_a, wide_b.mT, offs)


# N, K of one to nine blocks and of twelve, and how factors are stored.
EXTENTS = (
    (264, 200, "gaps"), (456, 296, "outer"), (8, 16, "row"), (1160, 128, "row"), (264, 504, "outer"),
    (136, 640, "gaps"), (72, 768, "row"), (392, 888, "outer"), (264, 1024, "gaps"), (136, 1032, "outer"),
    (264, 1536, "row"),
)  # fmt: skip


@hopper
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", EVERY, ids=name_of)
def test_results(device, config, out_dtype):
    """Tiles over the ends of groups and columns, in the middle of a block of columns, a block of K that is not full;
    less than a round of stages, whole rounds, and every rest of one."""
    for sizes in ((0, 300, 1, 128, 0, 513, 77, 0), (3, 0, 40)):
        for N, K, how in EXTENTS:
            a, b, offs, scale_a, scale_b = operands(sizes, N, K, how, device)
            wanted = exact(a, b, offs, scale_a, scale_b)
            for whole in {False, config.whole_rounds(K, BLOCKS)}:
                out = torch.full((a.shape[0], N), torch.nan, dtype=out_dtype, device=device)
                kernel = compiled(config, out_dtype, scaling="blocks", whole_rounds=whole)
                kernel(a, b, out, offs, scale_a, scale_b)
                assert torch.equal(out, wanted.to(out_dtype)), (sizes, N, K, how, whole)


@hopper
@pytest.mark.parametrize("config", EVERY, ids=name_of)
def test_long_sums_keep_their_bits(device, config):
    generator = torch.Generator().manual_seed(1)
    K, offs = 7168, torch.tensor([130, 130, 133], dtype=torch.int32, device=device)
    a = torch.randint(1, 5, (133, K), generator=generator).float().to(FP8).to(device)
    b = torch.randint(1, 5, (3, 264, K), generator=generator).float().to(FP8).to(device).mT
    scale_a, scale_b = torch.ones(133, 56, device=device), torch.ones(3, 56, 3, device=device)
    scale_a[:, ::3], scale_b[:, 1::2] = 2.0, 0.5
    out = torch.full((133, 264), torch.nan, device=device)
    kinds = dict(scaling="blocks", whole_rounds=config.whole_rounds(K, BLOCKS))
    compiled(config, out.dtype, **kinds)(a, b, out, offs, scale_a, scale_b)
    assert torch.equal(out.double(), exact(a, b, offs, scale_a, scale_b))


@hopper
@pytest.mark.parametrize("K", [648, 1536])
@pytest.mark.parametrize("config", [*CONFIGS_BLOCK_SCALED, *EVERY[-3:]], ids=name_of)
def test_many_tiles(device, config, K):
    """Every CTA takes many tiles, with a rest of a round of stages in each or none. A graph replays it."""
    a, b, offs, scale_a, scale_b = operands((5000, 0, 3001, 4097), 1992, K, "outer", device)
    wanted = exact(a, b, offs, scale_a, scale_b)
    kernel = compiled(config, torch.float32, scaling="blocks", whole_rounds=config.whole_rounds(K, BLOCKS))
    out = torch.full((a.shape[0], 1992), torch.nan, device=device)
    kernel(a, b, out, offs, scale_a, scale_b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(a, b, out, offs, scale_a, scale_b)
    for _ in range(3):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out.double(), wanted)


def along_k(sizes, M, N, how, device, tail=61):
    """Operands whose groups are whole blocks; NaN after the last one and between lines."""
    total, pitch = sum(sizes) + tail, -(-(sum(sizes) + tail) // 16) * 16 + 16
    blocks, lines = -(-total // 128), []
    for count, seed in ((M, 1), (N, 2)):
        wide = torch.full((count, pitch), torch.nan, device=device).to(FP8)
        wide[:, : total - tail] = integers((count, total - tail), torch.float32, seed, device=device).to(FP8)
        lines.append((wide[:, :total], factors((count, blocks), seed + 2, how, device)))
    (a, scale_a), (b, scale_b) = lines
    offs = torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)
    used = total - tail
    wide_a, wide_b = (reference.dequantize(each[:, :used], scale[:, : used // 128]) for each, scale in lines)
    for scale in (scale_a, scale_b):
        scale[:, used // 128 :] = torch.nan
    return a, b.mT, offs, scale_a, scale_b, reference.grouped_mm(wide_a, wide_b.mT, offs)


@hopper
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", EVERY_ALONG_K, ids=name_of)
def test_results_along_k(device, config, out_dtype):
    """Tiles over the edges of the result, odd and even numbers of blocks, empty groups at both ends."""
    for sizes in ((0, 384, 128, 0, 1280, 256, 0), (128,), (0, 0)):
        for M, N, how in ((264, 200, "gaps"), (13, 8, "outer"), (457, 296, "outer"), (130, 1160, "row")):
            a, b, offs, scale_a, scale_b, wanted = along_k(sizes, M, N, how, device)
            for _ in range(2):
                out = torch.full((len(sizes), M, N), torch.nan, dtype=out_dtype, device=device)
                compiled(config, out_dtype, scaling="blocks", along="k")(a, b, out, offs, scale_a, scale_b)
                assert torch.equal(out, wanted.to(out_dtype)), (sizes, M, N, how)


@hopper
@pytest.mark.parametrize("config", EVERY_ALONG_K, ids=name_of)
def test_many_tiles_along_k(device, config):
    a, b, offs, scale_a, scale_b, wanted = along_k((5120, 0, 128, 2944), 1999, 3000, "outer", device)
    kinds = dict(scaling="blocks", along="k")
    for _ in range(3):
        out = torch.full((4, 1999, 3000), torch.nan, device=device)
        compiled(config, out.dtype, **kinds)(a, b, out, offs, scale_a, scale_b)
        assert torch.equal(out.double(), wanted)


@hopper
def test_wrong_ends_along_k_read_nothing_outside(device):
    """Ends off the blocks, that fall, and outside of the operands: any result, but no fault."""
    a, b, _, scale_a, scale_b, _ = along_k((384, 128), 264, 200, "outer", device)
    kinds = dict(scaling="blocks", along="k")
    for ends in ((127, 129, 256), (400, 100, 573), (-5, 2**30, 3), (1, 573, 573)):
        out = torch.zeros(3, 264, 200, device=device)
        offs = torch.tensor(ends, dtype=torch.int32, device=device)
        compiled(EVERY_ALONG_K[0], out.dtype, **kinds)(a, b, out, offs, scale_a, scale_b)
        torch.cuda.synchronize()
