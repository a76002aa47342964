"""The Hopper kernel in CuTe DSL: what the compiler makes of each configuration, without a GPU."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace

import pytest

from course_kernels.kernels.cute_sm90.config import (
    CONFIGS,
    CONFIGS_8_BIT,
    CONFIGS_8_BIT_ALONG_K,
    CONFIGS_ALONG_K,
    CONFIGS_BLOCK_SCALED,
    COOPERATIVE,
    PINGPONG,
    CuteConfig,
)
from course_kernels.kernels.cute_sm90.form import Form
from cute_forms import form_for
from in_flight import disassembled, moves_between_products

NAMES = [config.name for config in CONFIGS]
# Of the gradients' kernels, one with each schedule.
CROSS = [CuteConfig(128, 256, 64, 2, 4, COOPERATIVE), CuteConfig(128, 192, 64, 2, 4, PINGPONG, split_last_wave=True)]
SMALLEST = CuteConfig(64, 64, 64, 1, 2, PINGPONG)
NARROW = CuteConfig(128, 192, 64, 2, 4, PINGPONG, last_tile_n=128)


@pytest.fixture(scope="module")
def kernel():
    pytest.importorskip("cutlass", reason="needs the cutlass extra")
    from course_kernels.kernels.cute_sm90 import kernel

    return kernel


@pytest.fixture(scope="module")
def compile_for():
    pytest.importorskip("cutlass", reason="needs the cutlass extra")
    from course_kernels.kernels.cute_sm90.compilation import compile_for

    return compile_for


@pytest.fixture(scope="module")
def compiled(code_for):
    """The code of a configuration for dtypes and fields of a form."""
    return lambda config, dtype, *out_dtype, **fields: code_for(config, form_for(dtype, **fields), dtype, *out_dtype)


@pytest.fixture(scope="module")
def ptx_of(compiled):
    """The PTX of a configuration for dtypes and fields of a form."""
    return lambda *arguments, **fields: compiled(*arguments, **fields).ptx


@pytest.mark.parametrize(
    ("config", "form", "dtypes", "said"),
    [
        (CuteConfig(256, 256, stages=2), Form(), ["bfloat16"], "config: at most 208 accumulators"),
        (CONFIGS_8_BIT[0], Form(), ["bfloat16"], "config: 4 stages need"),
        (CONFIGS[0], Form("k", "k"), ["bfloat16"], "b_major must be 'n' where along is 'k'"),
        (CONFIGS_8_BIT[0], Form("m", "k", 1), ["bfloat16"], "operand_bytes must be 2 where dtype is 'bfloat16', got 1"),
        (CROSS[0], Form("k", "n", epilogue="add"), ["bfloat16"],
         "out_dtype must be 'float32' where epilogue is 'add', got 'bfloat16'"),
        (CuteConfig(128, 192, 64, 2, 4, PINGPONG, tail_tile_n=256), Form("k", "n"), ["bfloat16"],
         "config: tail_tile_n is 0 where along is 'k', got 256"),
        (CROSS[1], Form("k", "n"), ["bfloat16"], "config: split_last_wave is False where along is 'k', got True"),
        (replace(CONFIGS_BLOCK_SCALED[1], dynamic=True), Form("m", "k", 1, scaling="blocks"), ["float8_e4m3fn"],
         "config: dynamic is False where blocks have scales, got True"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_what_cannot_be_built_is_refused(compile_for, config, form, dtypes, said):
    with pytest.raises(ValueError, match=said):
        compile_for(config, form, *dtypes)


def check_products(ptx, config, a_across, b_across):
    """For each shape of tiles, one set of products for a tile's first stage and one for the others, each of as many as
    a stage takes."""
    assert ".target sm_90a" in ptx
    products = Counter()
    for each in config.shapes:
        products[each.tile_n] += 2 * (each.tile_m // 64 // config.sharing_groups) * (config.tile_k // 16)
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.bf16\.bf16", ptx)
    assert Counter(map(int, found)) == products
    # The last two numbers of a product say which operands are laid out across their depth.
    across = re.findall(r"wgmma\.mma_async[^;]*, (\d), (\d);", ptx)
    assert across == [(str(int(a_across)), str(int(b_across)))] * sum(products.values())
    assert "setmaxnreg.dec" in ptx
    assert "setmaxnreg.inc" in ptx
    assert ".local" not in ptx


def loads_of(ptx) -> list[tuple[int, bool]]:
    """Dimensions of each load in the order of the program, and whether it is for both CTAs of a cluster."""
    found = re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\.shared::\S*global\.tile(\S*)", ptx)
    return [(int(rank), "multicast::cluster" in rest) for rank, rest in found]


def loads_for(config, a, b) -> list[tuple[int, bool]]:
    """The same as they should be, for the dimensions of A's and of B's loads of a shape of tiles. In a cluster, first
    for a tile beside the other CTA's, which uses the same rows of A, then for one above or below, which uses the same
    columns of B."""
    found = []
    for shape in config.shapes:
        if config.cluster == 1:
            found += [(rank, False) for rank in (*a(shape), *b(shape))]
        else:
            found += [(rank, shared) for shares_a in (True, False)
                      for ranks, shared in ((a, shares_a), (b, not shares_a)) for rank in ranks(shape)]  # fmt: skip
    return found


def policies_of(ptx) -> list[int]:
    """The cache policy of each load in the order of the program."""
    values = dict(re.findall(r"mov\.b64\s+(%rd\d+), (\d+);", ptx))
    return [int(values[name]) for name in re.findall(r"cp\.async\.bulk\.tensor\.\dd\.shared[^;]*, (%rd\d+);", ptx)]


def stores_of(ptx) -> list[int]:
    """Dimensions of each store from shared memory."""
    return [int(rank) for rank in re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\.global\.shared", ptx)]


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_shipped_configurations_compile_to_what_they_say(ptx_of, config):
    ptx = ptx_of(config, "bfloat16")
    check_products(ptx, config, False, False)

    # A in two dimensions; B with the group as its third. A box holds 128 bytes of depth.
    boxes = config.tile_k // 64
    assert loads_of(ptx) == loads_for(config, lambda shape: [2] * boxes, lambda shape: [3] * boxes)
    stores = [each.tile_m // 64 // config.sharing_groups * (each.tile_n // 64) for each in config.shapes]
    assert stores_of(ptx) == [4] * sum(stores)
    # Nothing but the tail's zeros is stored without TMA.
    assert set(re.findall(r"st\.global\S*", ptx)) == {"st.global.v4.b32"}


@pytest.mark.parametrize("config", [*CROSS, CONFIGS[2], CONFIGS[-1]], ids=lambda config: config.name)
def test_weights_stored_row_by_row(ptx_of, config):
    ptx = ptx_of(config, "bfloat16", b_major="n")
    check_products(ptx, config, False, True)
    # A box of B holds 128 bytes of columns.
    a = [2] * (config.tile_k // 64)
    assert loads_of(ptx) == loads_for(config, lambda shape: a, lambda shape: [3] * (shape.tile_n // 64))


SMALL = next(config for config in CONFIGS_ALONG_K if config.store_row_bytes < 128)
ALONG_K = [*(replace(each, split_last_wave=False) for each in CROSS), NARROW, SMALL]


# float32 with one of them: with the others its blocks of C are those that are added below.
@pytest.mark.parametrize(
    ("config", "out_dtype"),
    [*((config, "bfloat16") for config in ALONG_K), (ALONG_K[0], "float32")],
    ids=lambda each: getattr(each, "name", each),
)
def test_groups_along_k(ptx_of, config, out_dtype):
    ptx = ptx_of(config, "bfloat16", out_dtype, along="k")
    check_products(ptx, config, True, True)
    # Both operands through windows; the result with the group as its third dimension.
    boxes = (lambda shape: [4] * (shape.tile_m // 64)), (lambda shape: [4] * (shape.tile_n // 64))
    assert loads_of(ptx) == loads_for(config, *boxes)
    cols = config.store_row_bytes // (2 if out_dtype == "bfloat16" else 4)
    blocks = sum(each.tile_m // 64 // config.sharing_groups * (each.tile_n // cols) for each in config.shapes)
    assert stores_of(ptx) == [3] * blocks
    # Nothing but the zeros of empty groups is stored without TMA; they wait for the loads.
    assert set(re.findall(r"st\.global\S*", ptx)) == {"st.global.v4.b32"}
    assert ptx.count("atom.shared.cta.add") == 2, "one counts tiles, the other reads the count"


@pytest.mark.parametrize("config", ALONG_K[1:], ids=lambda config: config.name)
def test_added_along_k(ptx_of, config):
    """The stores are additions of the hardware; what is empty is left alone, so nobody counts tiles."""
    ptx = ptx_of(config, "bfloat16", "float32", along="k", epilogue="add")
    check_products(ptx, config, True, True)
    cols = config.store_row_bytes // 4
    blocks = sum(each.tile_m // 64 // config.sharing_groups * (each.tile_n // cols) for each in config.shapes)
    assert ptx.count("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add") == blocks
    assert stores_of(ptx) == []
    assert "st.global" not in ptx
    assert "atom.shared" not in ptx


DYNAMIC = [config for config in CONFIGS_ALONG_K if config.dynamic]


@pytest.mark.parametrize(
    ("config", "out_dtype", "options"),
    [
        *((config, "bfloat16", dict(along="k")) for config in DYNAMIC),
        (replace(NARROW, cluster=1, dynamic=True), "bfloat16", dict(along="k")),
        (DYNAMIC[1], "float32", dict(along="k", epilogue="add")),
        (replace(CONFIGS[2], dynamic=True), "bfloat16", dict()),
        (replace(CONFIGS[0], dynamic=True), "float32", dict(b_major="n")),
    ],
    ids=lambda each: getattr(each, "name", None) or (each if isinstance(each, str) else "-".join(map(str, each))),
)
def test_numbers_are_asked_for_and_sent(ptx_of, config, out_dtype, options):
    """For each shape of tile one addition in global memory, before it is loaded, and one place where a number is sent
    to each CTA, while it is loaded; one more place where a cluster has none; and the sums stay in registers."""
    ptx = ptx_of(config, "bfloat16", out_dtype, **options)
    along_k = "along" in options
    check_products(ptx, config, along_k, along_k or "b_major" in options)
    shapes = len(config.shapes)
    assert re.findall(r"atom\S*\.global\S*", ptx) == ["atom.global.add.f64"] * shapes, (
        "of integers it would be waited for at once"
    )
    counts_loaded = along_k and "epilogue" not in options  # tiles, for the zeros of empty groups
    sent = [each.start() for each in re.finditer(r"st\.async\.shared::cluster\.mbarrier::complete_tx::bytes\.b32", ptx)]
    if config.cluster == 1:
        assert not sent, "memcheck refuses such a store in a cluster of one CTA"
        # The first one sets the count of loaded tiles to 0.
        sent = [each.start() for each in re.finditer(r"st\.relaxed\.cta\.shared", ptx)][counts_loaded:]
    assert len(sent) == (shapes + 1) * config.cluster
    assert ptx.index("atom.global") < ptx.index("cp.async.bulk.tensor") < sent[0]
    # Of loaded tiles: one counts, one reads, and one lets zeros go on when there are no more tiles.
    assert ptx.count("atom.shared.cta.add") == 3 * counts_loaded


@pytest.mark.parametrize("config", DYNAMIC, ids=lambda config: config.name)
def test_products_of_a_stage_follow_at_once(compiled, tmp_path, config):
    """The compiler knows that the stage is the same in all lanes, although it depends on a number that was sent: it
    costs ping-pong up to 18 % if it does not."""
    sass = disassembled(compiled(config, "bfloat16", "bfloat16", along="k").cubin, tmp_path)
    assert sass.count("GMMA.64x") == 2 * (config.tile_k // 16) * (config.tile_m // 64 // config.sharing_groups)
    assert moves_between_products(sass) == []


def test_a_fixed_order_asks_nobody(ptx_of):
    ptx = ptx_of(ALONG_K[0], "bfloat16", "bfloat16", along="k")
    assert "st.async" not in ptx
    assert "atom.global" not in ptx


def test_tiles_are_counted_alike_by_all_who_count(kernel, compile_for, monkeypatch):
    """By the whole configuration, whatever the shape of the tile at hand."""
    asked = []

    def counted(module, name, function):
        def counting(config, *arguments):
            asked.append((name, config))
            return function(config, *arguments)

        monkeypatch.setattr(module, name, counting)

    for name in ("first_window", "find_tile", "blocks_at", "write_zeros"):
        counted(kernel, name, getattr(kernel, name))
    counted(kernel.dynamic_order, "find_tile", kernel.dynamic_order.find_tile)
    compile_for(NARROW, Form("k", "n"), "bfloat16")
    assert {config for _, config in asked} == {NARROW}
    assert Counter(name for name, _ in asked)["blocks_at"] == 1 + len(NARROW.shapes)


# Each way to cut tiles with one pair of types, and all pairs with the fastest to compile.
@pytest.mark.parametrize(
    ("dtypes", "config"),
    [
        *((dtypes, CONFIGS[0]) for dtypes in (("float16",), ("float16", "float32"), ("bfloat16", "float32"))),
        (("float16", "float32"), CONFIGS[1]),
        (("bfloat16", "float32"), CONFIGS[2]),
    ],
    ids=lambda each: getattr(each, "name", None) or "-".join(each),
)
def test_other_types_compile(ptx_of, dtypes, config):
    ptx = ptx_of(config, *dtypes)
    kind = {"float16": "f16", "bfloat16": "bf16"}[dtypes[0]]
    assert f"f32.{kind}.{kind}" in ptx
    assert ("stmatrix" in ptx) == (dtypes[-1] != "float32")


@pytest.mark.parametrize("cluster", [1, 2])
def test_what_is_evicted_first(ptx_of, cluster):
    """Loads of B alone, which have three dimensions, whoever they are for."""
    config = CuteConfig(64, 64, 64, cluster, 4, PINGPONG, stream_b=True)
    for streamed, each in ((True, config), (False, replace(config, stream_b=False))):
        ptx = ptx_of(each, "bfloat16")
        evicted_first = [policy == 0x12F0000000000000 for policy in policies_of(ptx)]
        assert evicted_first == [streamed and rank == 3 for rank, _ in loads_of(ptx)]
        assert len(evicted_first) == 2 * cluster


@pytest.mark.parametrize("fields", [{}, dict(along="k"), dict(rows="counts")], ids=["along m", "along k", "counts"])
def test_ends_of_64_bits_are_clamped_before_they_are_cut(ptx_of, fields):
    """What is clamped is as wide as what is read; ends of 32 bits are read as such."""
    narrow, wide = (ptx_of(SMALLEST, "bfloat16", **fields, index_bytes=bytes_) for bytes_ in (4, 8))
    reads = narrow.count("ld.global.b32")
    assert wide.count("ld.global.b64") == reads > 0
    assert wide.count("ld.global.b32") == narrow.count("ld.global.b64") == 0
    # One clamp may serve two reads.
    assert reads >= wide.count("min.s64") == wide.count("max.s64") > 0
    assert narrow.count("max.s64") == 0


def test_strips_are_part_of_the_kernel(ptx_of):
    other = replace(CONFIGS[0], swizzle_size=4 if CONFIGS[0].swizzle_size == 8 else 8)
    assert ptx_of(CONFIGS[0], "bfloat16") != ptx_of(other, "bfloat16")


def check_scaling(ptx, config):
    """Two factors for each accumulator, of which those of columns come in pairs."""
    sums = sum(each.tile_m // config.sharing_groups * each.tile_n for each in config.shapes)
    assert ptx.count("mul.f32") == 2 * sums // 128
    assert ptx.count("ld.global.v2.b32") == sum(each.tile_n for each in config.shapes) // 8


# How CuTe's own wait ends in PTX, whose warp may sleep for so many nanoseconds.
ASLEEP = ", 10000000;"


# bfloat16 by default with each configuration; float32, whose blocks of C have half the columns, with each schedule.
@pytest.mark.parametrize(
    ("config", "out_dtypes"),
    [*((config, ()) for config in CONFIGS_8_BIT),
     *((config, ("float32",)) for config in (CONFIGS_8_BIT[0], CONFIGS_8_BIT[-1]))],
    ids=lambda each: getattr(each, "name", None) or "-".join(each) or "bfloat16",
)  # fmt: skip
def test_operands_of_8_bits(ptx_of, config, out_dtypes):
    ptx = ptx_of(config, "float8_e4m3fn", *out_dtypes, scaling="lines")
    cols = {256: 128}.get(config.tile_n, config.tile_n)
    # Every block's products are summed from zero, in as many parts as there are columns, and added in float32.
    products = re.findall(r"wgmma\.mma_async\S*\.(m\d+n\d+k\d+)\.f32\.e4m3\.e4m3", ptx)
    assert products == [f"m64n{cols}k32"] * (config.tile_n // cols * config.tile_k // 32)
    assert ptx.count("wgmma.wait_group") == config.tile_n // cols
    assert ptx.count("fma.rn.f32") == config.tile_m // config.sharing_groups * config.tile_n // 128
    assert "add.f32" not in ptx
    check_scaling(ptx, config)
    # None but the last waits of the loading warp, for stages that are still read, let a warp sleep.
    assert ptx.count(ASLEEP) == config.stages
    assert ".local" not in ptx

    assert loads_of(ptx) == loads_for(config, lambda shape: [2], lambda shape: [3])
    assert stores_of(ptx) == [4] * (config.tile_n // (32 if out_dtypes else 64))


@pytest.mark.parametrize("config", CONFIGS_8_BIT_ALONG_K, ids=lambda config: config.name)
def test_operands_of_8_bits_along_k(compiled, tmp_path, config):
    """Both operands as they are, whose groups are whole blocks; scaled at the end."""
    made = compiled(config, "float8_e4m3fn", along="k", scaling="lines")
    ptx = made.ptx
    sums = config.tile_m // config.sharing_groups * config.tile_n // 128
    assert ptx.count("fma.rn.f32") == sums
    assert ptx.count("mul.f32") == 2 * sums + 1, "and one of the pace of zeros"
    assert loads_of(ptx) == loads_for(config, lambda shape: [2], lambda shape: [2])
    assert stores_of(ptx) == [3] * (config.tile_n // 64)
    assert ".local" not in ptx
    assert not re.search(r"\b(LDL|STL)\b", disassembled(made.cubin, tmp_path))


@pytest.mark.parametrize(
    ("config", "dtype", "options"),
    [*((config, "float8_e4m3fn", dict(scaling="lines")) for config in CONFIGS_8_BIT),
     (CuteConfig(128, 192, 128, 2, 3, last_tile_n=128), "float8_e4m3fn", {}),
     (CuteConfig(64, 64, 128, 1, 4, PINGPONG), "float8_e4m3fn", {}),
     *((config, "bfloat16", dict(along="k")) for config in CONFIGS_ALONG_K if config.store_row_bytes < 128)],
    ids=lambda each: getattr(each, "name", None) or str(each),
)  # fmt: skip
def test_a_block_of_c_is_not_overwritten_while_it_is_read(ptx_of, config, dtype, options):
    """A warp group's stores of three tiles, of any shapes: before it writes to a block, that block's last store has to
    be among those that it waited for."""
    ptx, form = ptx_of(config, dtype, **options), form_for(dtype, **options)
    waits = [int(wait) for wait in re.findall(r"cp\.async\.bulk\.wait_group\.read\s+(\d+)", ptx)]
    assert waits.pop() == 0, "all, before the end"
    of_shapes = []
    for shape in config.shapes:
        cols = shape.tile_n // (config.store_row_bytes // 2)  # of bfloat16
        of_shapes.append([waits.pop(0) for _ in range(shape.tile_m // 64 // config.sharing_groups * cols)])
    assert waits == []
    for tiles in itertools.product(of_shapes, repeat=3):
        stores = []
        for waited in tiles:
            for number, reading in enumerate(waited):
                block = number % config.store_blocks(form)
                assert block not in stores[len(stores) - reading :], "the hardware may still read it"
                stores.append(block)


def test_nothing_is_scaled_without_scales(ptx_of):
    ptx, scaled = (ptx_of(CONFIGS_8_BIT[0], "float8_e4m3fn", scaling=scaling) for scaling in ("none", "lines"))
    assert "mul.f32" not in ptx
    assert "ld.global.v2" not in ptx
    assert scaled.count("ld.global.b32") - ptx.count("ld.global.b32") == 2, "factors of a thread's two rows"
    assert "cvt.rn.bf16x2.f32" in ptx, "the result is bfloat16"


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[3]], ids=lambda config: config.name)
def test_scales_of_16_bit_operands(ptx_of, config):
    check_scaling(ptx_of(config, "bfloat16", scaling="lines"), config)


@pytest.mark.parametrize(
    ("config", "dtype", "options"),
    [
        (CONFIGS[1], "bfloat16", {}),
        (CONFIGS[-1], "bfloat16", dict(b_major="n")),
        (CONFIGS_8_BIT[1], "float8_e4m3fn", dict(scaling="lines")),
        (CONFIGS_8_BIT[-1], "float8_e4m3fn", dict(scaling="groups")),
        (CONFIGS_BLOCK_SCALED[-1], "float8_e4m3fn", dict(scaling="blocks")),
        (CONFIGS_BLOCK_SCALED[0], "float8_e4m3fn", dict(scaling="blocks", whole_rounds=True)),
    ],
    ids=["16 bits", "few rows", "8 bits", "a factor for a group", "block scales", "whole rounds"],
)
def test_masked_groups(ptx_of, config, dtype, options):
    """All of the result goes through windows: nothing is written to rows that do not count, not even zeros."""
    ptx = ptx_of(config, dtype, rows="counts", **options)
    assert "st.global" not in ptx
    assert set(stores_of(ptx)) == {4}
    assert ".local" not in ptx
    if dtype == "bfloat16":
        check_products(ptx, config, False, options.get("b_major") == "n")
    elif options.get("scaling") == "blocks":
        assert ptx.count("wgmma.wait_group") > 0
    elif options.get("scaling") == "groups":
        assert ptx.count("ld.global.v2.b32") == 0, "no factors of columns"
    else:
        check_scaling(ptx, config)
