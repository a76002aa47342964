"""GemmConfig: what it refuses, the shared memory it needs, and which kernels it is valid for."""

from __future__ import annotations

import dataclasses

import pytest

from course_kernels import GemmConfig
from course_kernels.config import LaunchOptions


@pytest.mark.parametrize("name", ["block_m", "block_n", "block_k"])
@pytest.mark.parametrize("value", [0, -16, 8, 24, 100, 64.0, "64", None])
def test_blocks_must_be_powers_of_two_of_at_least_16(name, value):
    with pytest.raises(ValueError) as caught:
        GemmConfig(**{name: value})
    assert name in str(caught.value)
    assert "power of two" in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    "name, value",
    [
        ("num_warps", 0), ("num_warps", 3), ("num_warps", 16), ("num_warps", None),
        ("store_parts", 0), ("store_parts", 3), ("store_parts", "2"),
        ("schedule", "swizzled"), ("schedule", None), ("schedule", 0),
        ("num_stages", 0), ("num_stages", 2.5), ("num_stages", "3"),
        ("group_m", 0), ("group_m", -1), ("group_m", None),
        ("programs_per_sm", 0), ("programs_per_sm", 1.0),
        ("programs", 0), ("programs", -3), ("programs", 2.0), ("programs", True), ("programs", 2**31),
        ("num_xcds", 0), ("num_xcds", None), ("num_xcds", 8.0),
    ],
)  # fmt: skip
def test_other_fields_name_themselves_and_the_value(name, value):
    with pytest.raises(ValueError) as caught:
        GemmConfig(**{name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("extent", [16, 32, 64, 128, 256])
def test_valid_blocks(extent):
    config = GemmConfig(block_m=extent, block_n=16, block_k=32)
    assert config.block == (extent, 16, 32)


def test_config_is_immutable_and_hashable():
    config = GemmConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.block_m = 32
    assert {config: 1}[GemmConfig()] == 1
    with pytest.raises(ValueError, match="block_n"):
        dataclasses.replace(config, block_n=17)


@pytest.mark.parametrize(
    "m, n, tiles", [(0, 5, 0), (5, 0, 0), (1, 1, 1), (64, 32, 1), (65, 32, 2), (64, 33, 2), (129, 65, 9)]
)
def test_tiles(m, n, tiles):
    assert GemmConfig(64, 32, 16).tiles(m, n) == tiles


def test_shared_memory_by_hand():
    config = GemmConfig(128, 256, 64, num_stages=3, store_parts=2)
    stages = 3 * 64 * (128 + 256) * 2
    assert config.shared_memory("round_robin", 2, 2) == stages
    # A descriptor store has a buffer of its own beside the stages: half a tile, and a whole one from Blackwell on.
    assert config.shared_memory("tma", 2, 2, (9, 0)) == stages + 128 * 256 * 2 // 2 + 64
    assert config.shared_memory("tma", 2, 2, (10, 0)) == stages + 128 * 256 * 2 + 64
    # A pointer kernel's output reuses the stages' memory, and may be the larger of the two.
    assert GemmConfig(128, 128, 16, num_stages=1).shared_memory("naive", 2, 4) == 128 * 128 * 4


def test_shared_memory_of_the_packed_kernels_by_hand():
    config = GemmConfig(128, 256, 64, num_stages=4, store_parts=2)
    stages = 4 * 64 * (128 + 256) * 2
    for kernel in ("contiguous", "transposed"):
        assert config.shared_memory(kernel, 2, 2, (9, 0)) == stages + 128 * 256 * 2 // 2 + 1536
        assert config.shared_memory(kernel, 2, 2, (10, 0)) == stages + 128 * 256 * 2 + 1536
        assert config.shared_memory(kernel, 2, 2, (9, 0), uses_tma=False) == stages + 16384 + 1536
        assert config.shared_memory(kernel, 2, 4, (9, 0), uses_tma=False) == stages + 128 * 256 * 4 + 1536
        read = config.shared_memory(kernel, 2, 2, (9, 0), uses_tma=False, accumulate=True)
        assert read == stages + 128 * 256 * 2 + 1536
        assert f"it takes {read}" in config.valid_for(
            kernel, 2, capability=(9, 0), shared_limit=read - 1, uses_tma=False, accumulate=True
        )
    wide = GemmConfig(64, 64, 32, num_stages=2)
    assert wide.shared_memory("contiguous", 4, 4, (9, 0)) == 2 * 32 * 128 * 4 + 64 * 64 * 4 + 1024
    assert wide.shared_memory("contiguous", 4, 4, (10, 0)) == 2 * 2 * 32 * 128 * 4 + 64 * 64 * 4 + 1024
    assert GemmConfig(16, 32, 16, num_stages=1).shared_memory("contiguous", 2, 4, uses_tma=False) == 1536 + 2048 + 1024


def test_a_valid_configuration_has_no_reason_against_it():
    for kernel in ("naive", "round_robin", "tma", "contiguous", "transposed"):
        assert GemmConfig().valid_for(kernel, 2) is None
        assert GemmConfig().valid_for(kernel, 2, 4, capability=(9, 0), shared_limit=232_448) is None


def test_reasons_against_a_configuration():
    chunks, dynamic = GemmConfig(schedule="chunks"), GemmConfig(schedule="dynamic")
    assert chunks.valid_for("tma", 2) is None
    assert "contiguous kernel, which has no schedule 'chunks'" in chunks.valid_for("contiguous", 2)
    assert dynamic.valid_for("contiguous", 2) is None
    assert "no schedule 'dynamic'" in dynamic.valid_for("transposed", 2)
    thin = GemmConfig(block_k=16)
    assert thin.valid_for("contiguous", 1) is None, "the interpreter multiplies any block"
    assert "block_k is 16" in thin.valid_for("contiguous", 1, capability=(9, 0))
    large = GemmConfig(128, 256, 64, 8, 4, store_parts=2)
    assert large.valid_for("contiguous", 2, capability=(9, 0), shared_limit=232_448) is None
    assert "the 232448 bytes" in large.valid_for("contiguous", 2, 4, capability=(9, 0), shared_limit=232_448)
    need = large.shared_memory("contiguous", 2, 2, (9, 0))
    assert large.valid_for("contiguous", 2, capability=(9, 0), shared_limit=need) is None
    assert f"it takes {need}" in large.valid_for("contiguous", 2, capability=(9, 0), shared_limit=need - 1)
    # What does not fit beside a descriptor's store may fit where pointers store.
    assert large.valid_for("contiguous", 2, capability=(9, 0), shared_limit=need - 1, uses_tma=False) is None
    with pytest.raises(ValueError, match="kernel must be one of"):
        large.valid_for("fast", 2)


def test_the_1_byte_default_output_has_2_bytes():
    config = GemmConfig(128, 128, 64)
    need = config.shared_memory("tma", 1, 2)
    assert config.valid_for("tma", 1, shared_limit=need) is None
    assert config.valid_for("tma", 1, shared_limit=need - 1) is not None


def test_fitted_gives_up_stages_but_not_the_second():
    config = GemmConfig(128, 128, 64, num_stages=4)
    needs = {n: dataclasses.replace(config, num_stages=n).shared_memory("contiguous", 2, 2) for n in (1, 2, 3, 4)}
    assert config.fitted("contiguous", 2, capability=(9, 0), shared_limit=needs[4]) is config
    assert config.fitted("contiguous", 2, capability=(9, 0), shared_limit=needs[4] - 1).num_stages == 3
    assert config.fitted("contiguous", 2, capability=(9, 0), shared_limit=needs[2]).num_stages == 2
    assert config.fitted("contiguous", 2, capability=(9, 0), shared_limit=needs[2] - 1) is None
    single = dataclasses.replace(config, num_stages=1)
    assert single.fitted("contiguous", 2, capability=(9, 0), shared_limit=needs[1]) is single
    assert dataclasses.replace(config, schedule="chunks").fitted("contiguous", 2) is None


def test_programs_and_chiplets_are_for_packed_kernels_and_static_schedules():
    config = GemmConfig(programs=304, num_xcds=8)
    for kernel in ("contiguous", "transposed"):
        assert config.valid_for(kernel, 2) is None
    for kernel, wrong in (("tma", config), ("naive", GemmConfig(programs=4)), ("round_robin", GemmConfig(num_xcds=2))):
        assert "neither programs nor num_xcds" in wrong.valid_for(kernel, 2)
    with pytest.raises(ValueError, match="num_xcds must be 1 with the schedule 'dynamic', got 8"):
        GemmConfig(num_xcds=8, schedule="dynamic")


def test_launch_options_change_what_they_name():
    config = GemmConfig(16, 32, 64, num_xcds=8)
    assert LaunchOptions().applied(config) == config
    assert LaunchOptions(7).applied(config) == dataclasses.replace(config, programs=7)
    dynamic = LaunchOptions(schedule="dynamic").applied(config)
    assert (dynamic.schedule, dynamic.num_xcds, dynamic.block) == ("dynamic", 1, config.block)
    with pytest.raises(ValueError, match="programs must be a positive integer below"):
        LaunchOptions(0)
    with pytest.raises(ValueError, match="schedule must be None or one of"):
        LaunchOptions(schedule="random")


def test_shared_memory_of_an_amd_gpu_by_hand():
    # AITER's own tile for MI300: one stage of 64 KiB, which is all of the LDS, but never at once.
    tile = GemmConfig(256, 256, 64, 8, 1)
    assert tile.shared_memory("contiguous", 2, 2, lds=65536, uses_tma=False) == 32768 + 24576 + 2048
    assert tile.valid_for("contiguous", 2, shared_limit=65536, uses_tma=False) is None
    assert "it takes" in tile.valid_for("contiguous", 2, capability=(7, 5), shared_limit=65536, uses_tma=False)
    # Two stages: one in LDS, and one in registers on its way there.
    tile = GemmConfig(128, 128, 64, 8, 2)
    assert tile.shared_memory("transposed", 2, 2, lds=65536, uses_tma=False) == 32768 + 24576 + 2048
    added = tile.shared_memory("transposed", 2, 2, lds=65536, uses_tma=False, accumulate=True)
    assert added == 32768 + 2 * 128 * 128 + 2048
    # A gfx950: both in LDS, of which Triton 3.9 takes a little more.
    assert tile.shared_memory("transposed", 2, 2, lds=163840, uses_tma=False) == 2 * 32768 + 4096
    added = tile.shared_memory("transposed", 2, 2, lds=163840, uses_tma=False, accumulate=True)
    assert added == 2 * 32768 + 2 * 128 * 128 + 4096
    assert "it takes" in GemmConfig(128, 256, 128, 8, 2).valid_for("contiguous", 2, shared_limit=163840, uses_tma=False)
