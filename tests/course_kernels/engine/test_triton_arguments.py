"""What a Triton launch is given: the configuration, the grid, and which operands go through descriptors."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig
from course_kernels.config import LaunchOptions
from course_kernels.engine import triton_arguments
from course_kernels.engine.options import Options
from course_kernels.engine.triton_arguments import prepare
from course_kernels.engine.tuning import Choice, Extents, Gpu, Kind
from course_kernels.engine.tuning.fallback_rules import ONE_TILE
from course_kernels.kernels.codes import Layout, Schedule, Store
from course_kernels.packed.checks import problem_of
from course_kernels.runtime import Device
from packed_operands import Operands

H200 = Device((9, 0), (9, 0), 132, 232448, True)
A100 = Device((8, 0), (8, 0), 108, 166912, False)


def layer(total=4096, groups=8, columns=512, depth=512):
    a = torch.empty(total, depth, dtype=torch.bfloat16)
    b = torch.empty(groups, columns, depth, dtype=torch.bfloat16).mT
    return Operands(a, b, torch.empty(groups, dtype=torch.int32)), torch.empty(total, columns, dtype=torch.bfloat16)


def prepared(device=H200, operands_and_out=None, scaling="row", **options):
    operands, out = operands_and_out or layer()
    product = operands.product(scaling=scaling)
    return prepare(problem_of(product, Options(**options)), product, out, device)


def test_a_layer_goes_through_descriptors_on_hopper_and_pointers_before():
    made = prepared()
    assert (made.kernel, made.arguments["C_KIND"]) == ("contiguous", Store.WINDOW)
    assert hasattr(made.arguments["a"], "block_shape")
    assert made.totals == {"total": None, "a": 0}, "the total bounds A's descriptor, too"
    older = prepared(A100)
    assert (older.arguments["A_KIND"], older.arguments["C_KIND"]) == (Layout.ANY, Store.POINTERS)
    assert older.totals == {"total": None}


def test_a_ragged_n_is_a_ragged_m_of_the_transposed_operands():
    (a, b, offs, *_), out = layer()
    made = prepared(operands_and_out=(Operands(b.mT, a.mT, offs), out.mT))
    assert made.arguments["total"] == 4096
    assert made.arguments["N"] == 512


def test_programs_are_no_more_than_tiles_and_no_less_than_one():
    config = GemmConfig(128, 128, 64, programs_per_sm=2)
    made = prepared(config=config)
    assert made.programs(8192) == 2 * 132
    assert made.programs(128) == 4 + 8 * 4, "a row of tiles, and one more for each group's end"
    assert made.programs(0) == 8 * 4
    assert prepared(Device(None, None, None, None, True), config=config).programs(10**6) == 4


def test_a_given_configuration_is_taken_or_refused_by_name():
    assert prepared(config=GemmConfig(64, 64, 64, schedule="dynamic")).arguments["SCHEDULE"] == Schedule.DYNAMIC
    with pytest.raises(ValueError, match="config does not suit the 232448 bytes of shared memory"):
        prepared(config=GemmConfig(256, 256, 128, num_stages=4))


def test_a_weight_gradient_has_a_kernel_of_its_own():
    (a, _, offs, *_), _ = layer()
    d_out, out = torch.empty(4096, 256, dtype=torch.bfloat16), torch.empty(8, 512, 256, dtype=torch.bfloat16)
    made = prepared(operands_and_out=(Operands(a.mT, d_out, offs), out))
    assert (made.kernel, made.totals) == ("transposed", {"total": None})
    assert made.programs(1) == made.programs(10**6), "the result's tiles do not depend on the depth"


@pytest.mark.parametrize(
    ("device", "groups", "total", "shares"),
    [(H200, 8, 4096, True), (H200, 8, 0, False), (H200, 0, 0, False), (A100, 8, 4096, False)],
)
def test_programs_of_one_tile_share_an_sm_on_hopper(device, groups, total, shares):
    """Only operands with descriptors get this configuration. Empty ones have none, and on an A100 there are none."""
    a, b = (torch.empty(total, extent, dtype=torch.bfloat16) for extent in (512, 1024))
    out = torch.empty(groups, 512, 1024, dtype=torch.bfloat16)
    operands = Operands(a.mT, b, torch.empty(groups, dtype=torch.int32))

    def launched(programs):
        return prepared(device, operands_and_out=(operands, out), config=LaunchOptions(programs))

    made, stays = launched(2**31 - 1), launched(264)
    block = made.arguments["BLOCK_M"], made.arguments["BLOCK_N"], made.arguments["BLOCK_K"]
    assert (block == ONE_TILE.block) == shares
    assert made.programs(total) == max(1, groups * ONE_TILE.tiles(512, 1024))
    assert stays.programs(total) == min(264, made.programs(total))
    if shares:
        config = GemmConfig(*block, **made.options, store_parts=made.arguments["STORE_PARTS"])
        kept = 1024  # by CUDA, of the 228 KiB of an SM
        assert 3 * (config.shared_memory("transposed", 2, 2) + kept) <= 228 * 1024


def test_a_configuration_may_say_how_many_programs_and_chiplets():
    config = GemmConfig(128, 128, 64, programs=304, num_xcds=8)
    made = prepared(config=config)
    assert made.programs(10**6) == 304
    assert made.programs(128) == 4 + 8 * 4, "no more than tiles"
    assert made.arguments["NUM_XCDS"] == 8
    interpreter = Device(None, None, None, None, True)
    assert prepared(interpreter, config=config).programs(10**6) == 304


@pytest.mark.parametrize(("num_sms", "programs"), [(None, 264), (500, 264), (132, 264), (131, 131), (1, 1)])
def test_a_limit_on_sms_is_one_on_programs(num_sms, programs):
    """An idle SM gets a program before any gets its second: to leave an SM idle, there are no more than the others."""
    config, ((a, _, offs, *_), out) = GemmConfig(128, 128, 64, programs_per_sm=2), layer(groups=32)
    gradient = Operands(a.mT, a, offs), out.new_empty(32, 512, 512)
    for given in (None, gradient):
        made = prepared(operands_and_out=given, config=config, num_sms=num_sms)
        assert made.programs(2**20) == programs
        assert made.arguments["BLOCK_M"] == 128
    with_more = prepared(config=GemmConfig(128, 128, 64, programs=300), num_sms=num_sms)
    assert with_more.programs(2**20) == (300 if programs == 264 else programs)


def test_a_limit_on_sms_asks_for_programs_that_fill_one(monkeypatch):
    asked = []

    def choose(*_, alone, **others):
        asked.append(alone)
        return Choice(GemmConfig(), None, "")

    monkeypatch.setattr(triton_arguments, "choose", choose)
    for num_sms in (None, 132, 131):
        prepared(num_sms=num_sms)
    assert asked == [False, False, True]


def test_launch_options_keep_the_chosen_blocks():
    chosen, launched = prepared(), prepared(config=LaunchOptions(7, "dynamic"))
    assert launched.programs(10**6) == 7
    assert (launched.arguments["SCHEDULE"], chosen.arguments["SCHEDULE"]) == (Schedule.DYNAMIC, Schedule.ROUND_ROBIN)
    for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"):
        assert launched.arguments[name] == chosen.arguments[name]
    (a, _, offs, *_), out = layer()
    gradient = Operands(a.mT, a, offs), out.new_empty(8, 512, 512)
    every = prepared(operands_and_out=gradient, config=LaunchOptions(2**31 - 1))
    blocks = every.arguments["BLOCK_M"], every.arguments["BLOCK_N"]
    assert every.programs(0) == 8 * (512 // blocks[0]) * (512 // blocks[1]), "one program for each tile"
    with pytest.raises(ValueError, match="config does not suit the transposed kernel, which has no schedule 'dynamic'"):
        prepared(operands_and_out=gradient, config=LaunchOptions(schedule="dynamic"))


def block_scaled(total=4096, outer=False, mode="m", **options):
    """A layer in 8 bits with scales of blocks, or its transposed product."""
    (a, b, offs, *_), out = layer(total)
    a, b = a.to(torch.float8_e4m3fn), b.mT.to(torch.float8_e4m3fn).mT
    scale_a = torch.empty(4, total).mT if outer else torch.empty(total, 4)
    scale_b = torch.empty(8, 4, 4).mT
    if mode == "n":
        operands, scaling = Operands(b.mT, a.mT, offs, None, scale_b.mT, scale_a), "128x128 1x128"
        return prepared(operands_and_out=(operands, out.mT), scaling=scaling, **options)
    operands = Operands(a, b, offs, None, scale_a, scale_b)
    return prepared(operands_and_out=(operands, out), scaling="1x128 128x128", **options)


@pytest.mark.parametrize("mode", ["m", "n"])
def test_scales_of_blocks_are_read_by_their_strides(mode):
    made = block_scaled(mode=mode)
    strides = {name: value for name, value in made.arguments.items() if name.startswith("stride_s") and "_s" in name}
    del strides["stride_scale_g"]
    assert strides == dict(
        stride_sa_g=0, stride_sa_m=4, stride_sa_k=1, stride_sb_g=16, stride_sb_n=4, stride_sb_k=1
    )  # fmt: skip
    assert (made.arguments["A_LINES"], made.arguments["B_LINES"]) == (1, 128)
    assert "stride_sa_k" not in made.totals


@pytest.mark.parametrize("mode", ["m", "n"])
def test_the_stride_of_scales_stored_block_by_block_is_the_total(mode):
    made = block_scaled(outer=True, mode=mode)
    assert (made.arguments["stride_sa_m"], made.arguments["stride_sa_k"]) == (1, 4096)
    assert made.totals["stride_sa_k"] is None, "a kept launch gets every batch's total"


def test_configurations_leave_room_for_the_sums_of_a_block():
    made = block_scaled()
    block = [made.arguments[f"BLOCK_{dim}"] for dim in "MNK"]
    assert block[0] * block[1] <= 64 * 32 * made.options["num_warps"]
    assert 128 % block[2] == 0
    with pytest.raises(
        ValueError, match="config does not suit block scales, whose blocks are 128 deep: block_k is 256"
    ):
        block_scaled(config=GemmConfig(64, 64, 256, num_stages=2))


@pytest.mark.parametrize("mode", ["m", "n"])
def test_the_chooser_is_asked_about_scales_of_blocks(monkeypatch, mode):
    asked, config = [], GemmConfig(32, 64, 128)

    def choose(*product, **launch):
        asked.append(product)
        assert launch == dict(
            uses_tma=True, stores_tma=True, out_bytes=2, accumulate=False, rank_block=0, programs=None, alone=False
        )
        return Choice(config, 1.0, "")

    monkeypatch.setattr(triton_arguments, "choose", choose)
    assert block_scaled(mode=mode).arguments["BLOCK_N"] == 64
    assert prepared().arguments["BLOCK_N"] == 64
    extents, gpu = Extents(512, 512, 512, 8), Gpu.of(H200)
    assert asked == [(Kind.parse("m,k fp8 blocks"), extents, gpu), (Kind("m", "k"), extents, gpu)]


def test_more_tiles_than_a_launch_can_count():
    """They need an output of terabytes, or one block's columns of a great many groups."""
    one = torch.empty(1, 1, dtype=torch.bfloat16)
    operands = Operands(one.expand(2**27, 16), one.expand(1, 16, 2**20), torch.empty(1, dtype=torch.int32))
    made = prepared(A100, operands_and_out=(operands, one.expand(2**27, 2**20)), config=GemmConfig(64, 64, 16))
    assert made.programs(2**16) == 108
    with pytest.raises(ValueError, match=r"the product may have 34359754752 tiles of \(64, 64, 16\)"):
        made.programs(2**27)
