"""Configurations of the Hopper kernel: which can be built, what they are called, and which are offered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_kernels.kernels.codes import Activation, Function
from course_kernels.kernels.cute_sm90.config import (
    CONFIGS,
    CONFIGS_8_BIT,
    CONFIGS_8_BIT_ALONG_K,
    CONFIGS_ALONG_K,
    CONFIGS_BLOCK_SCALED_ALONG_K,
    COOPERATIVE,
    PINGPONG,
    CuteConfig,
    configs_for,
)
from course_kernels.kernels.cute_sm90.form import Form

UNSPLIT = "split_last_wave is False where there are narrow or flat tiles, got True"
NAMES = [config.name for config in CONFIGS]
PLAIN, ALONG_K, EIGHT = Form(), Form("k", "n"), Form("m", "k", 1)
BLOCKS = EIGHT._replace(scaling="blocks")


def test_every_shipped_configuration_can_be_built():
    assert {config.name: config.why_not(PLAIN) for config in CONFIGS if config.why_not(PLAIN)} == {}
    assert {config.name: config.why_not(EIGHT) for config in CONFIGS_8_BIT if config.why_not(EIGHT)} == {}


def test_names_tell_configurations_apart():
    assert len(set(NAMES)) == len(CONFIGS)
    assert len({config.name for config in CONFIGS_8_BIT}) == len(CONFIGS_8_BIT)


@pytest.mark.parametrize(
    "changes, said",
    [
        (dict(schedule="both"), "schedule"),
        (dict(tile_m=64), "tile_m is a multiple of 128 where cooperative, got 64"),
        (dict(tile_m=96, schedule=PINGPONG), "tile_m is a multiple of 64 where pingpong, got 96"),
        (dict(tile_n=160), "tile_n"),
        (dict(tile_n=320), "tile_n"),
        (dict(tile_k=32), "tile_k is a multiple of 64"),
        (dict(tile_m=256, stages=2), "at most 208 accumulators"),
        (dict(schedule=PINGPONG), "at most 208 accumulators"),
        (dict(cluster=4), "a cluster has one or two CTAs, got 4"),
        (dict(cluster=0), "a cluster has one or two CTAs, got 0"),
        (dict(stages=1), "at least two stages take turns, one filled and one read, got 1"),
        (dict(stages=5), "5 stages need 262144 bytes of shared memory, and there are 231424"),
        (dict(last_tile_n=256), "last_tile_n is less than tile_n, 256, got 256"),
        (dict(last_tile_n=96), "narrow tiles: tile_n is 64, 128, 192 or 256, got 96"),
        (dict(tail_tile_n=256), "flat tiles: tile_m is a multiple of 128 where cooperative, got 64"),
        (dict(tile_n=128, tail_tile_n=320, schedule=PINGPONG), "flat tiles: tile_n is 64, 128, 192 or 256, got 320"),
        (dict(tile_n=128, stages=6, tail_tile_n=256, schedule=PINGPONG), "6 stages need 262144 bytes"),
        (dict(split_last_wave=True), "halved tiles: tile_m is a multiple of 128 where cooperative, got 64"),
        (dict(tile_n=128, last_tile_n=64, split_last_wave=True), UNSPLIT),
        (dict(tile_n=128, tail_tile_n=128, split_last_wave=True), UNSPLIT),
        (dict(store_row_bytes=32), "store_row_bytes is 64 or 128, got 32"),
        (
            dict(dynamic=True, tile_n=128, schedule=PINGPONG, split_last_wave=True),
            "where the last wave is split, got True",
        ),
    ],
)
def test_what_cannot_be_built_is_said(changes, said):
    assert said in CuteConfig(**changes).why_not(PLAIN)


@pytest.mark.parametrize(
    "config, said",
    [
        (CuteConfig(tile_k=64), "tile_k is a multiple of 128 at 1 bytes"),
        # 128 of the tile and 128 of one product of half of it.
        (
            CuteConfig(128, 128, 128, schedule=PINGPONG),
            "at most 208 accumulators fit into a thread's registers, got 256",
        ),
        (CuteConfig(tile_k=128, stages=5), "shared memory"),
    ],
)
def test_what_cannot_be_built_for_8_bits_is_said(config, said):
    assert said in config.why_not(EIGHT)


@pytest.mark.parametrize("form", [PLAIN, Form("m", "n"), ALONG_K])
def test_configurations_to_choose_from(form):
    found, along = configs_for(form), form.along
    assert found == (CONFIGS if along == "m" else CONFIGS_ALONG_K)
    assert {config.schedule for config in found} == {COOPERATIVE, PINGPONG}
    # A weight's gradient has no groups of few rows.
    assert any(config.tile_m == 64 for config in found) == (along == "m")
    assert any(config.tail_tile_n for config in found) == (along == "m")
    assert any(config.split_last_wave for config in found) == (along == "m")
    assert {config.dynamic for config in found} == {False, True}
    assert len({config.name for config in found}) == len(found)
    assert not [config.why_not(form) for config in found if config.why_not(form)]


@pytest.mark.parametrize("load", ["gather", "gather_b"])
def test_configurations_that_gather_lines_along_k(load):
    form = ALONG_K._replace(load=load)
    assert configs_for(form) == CONFIGS_ALONG_K
    assert {config.why_not(form) for config in CONFIGS_ALONG_K} == {None}
    deep = CuteConfig(128, 128, 128, 2, 3, PINGPONG)
    assert deep.why_not(ALONG_K) is None
    assert deep.why_not(form) == "tile_k is 64 where lines along K are gathered, got 128"
    assert deep.why_not(PLAIN._replace(load="gather")) is None


def test_configurations_to_choose_from_for_8_bits():
    of_lines, of_blocks = (Form("k", "k", 1, scaling=scaling) for scaling in ("lines", "blocks"))
    assert configs_for(EIGHT) == CONFIGS_8_BIT
    assert configs_for(of_lines) == CONFIGS_8_BIT_ALONG_K
    assert configs_for(of_blocks) == CONFIGS_BLOCK_SCALED_ALONG_K
    assert {each.why_not(of_lines) for each in CONFIGS_8_BIT_ALONG_K} == {None}
    assert {each.why_not(of_blocks) for each in CONFIGS_BLOCK_SCALED_ALONG_K} == {None}
    with pytest.raises(ValueError, match="b_major must be 'k' where operands have 8 bits, got 'n'"):
        configs_for(Form("m", "n", 1))


def test_a_stage_has_room_for_tiles_of_every_shape():
    config = CuteConfig(128, 192, 64, 2, 5, PINGPONG, last_tile_n=128, tail_tile_n=256)
    assert [(each.tile_m, each.tile_n) for each in config.shapes] == [(128, 192), (128, 128), (64, 256)]
    assert config.stage_lines == 320
    assert replace(config, tile_n=128, last_tile_n=64).stage_lines == 320
    halved = CuteConfig(128, 192, 64, 2, 4, PINGPONG, split_last_wave=True)
    assert [(each.tile_m, each.tile_n, each.split_last_wave) for each in halved.shapes] == [
        (128, 192, False),
        (64, 192, False),
    ]
    assert halved.stage_lines == 320
    # One block of C for each warp group where there is no room for two.
    assert [replace(config, stages=stages).store_blocks(PLAIN) for stages in (3, 4, 5)] == [2, 2, 1]
    assert config.shared_bytes(PLAIN) == 5 * 320 * 128 + 2 * 64 * 128


def test_small_blocks_for_stores_leave_room_for_a_stage():
    usual = CuteConfig(128, 192, 64, 2, 5, PINGPONG)
    small = replace(usual, most_stores=3, store_row_bytes=64)
    assert (usual.store_blocks(PLAIN), small.store_blocks(PLAIN)) == (1, 3)
    assert (replace(usual, most_stores=3).store_blocks(PLAIN), replace(small, most_stores=9).store_blocks(PLAIN)) == (
        1,
        3,
    )
    assert small.shared_bytes(PLAIN) == 5 * 320 * 128 + 2 * 3 * 64 * 64
    assert small.why_not(ALONG_K) is None
    assert (
        replace(small, stages=6).why_not(PLAIN) == "6 stages need 253952 bytes of shared memory, and there are 231424"
    )
    assert small.name == "128x192x64_2_5_pingpong_8_stores3x64"
    assert small in CONFIGS_ALONG_K


def test_a_dynamic_order_is_part_of_the_name():
    fixed, dynamic = CuteConfig(128, 256, 64, 2, 4), CuteConfig(128, 256, 64, 2, 4, dynamic=True)
    assert (fixed.name, dynamic.name) == ("128x256x64_2_4_cooperative_8", "128x256x64_2_4_cooperative_8_dynamic")
    assert {fixed, dynamic} <= set(CONFIGS_ALONG_K) & set(CONFIGS)
    assert fixed.why_not(ALONG_K) is dynamic.why_not(ALONG_K) is dynamic.why_not(PLAIN) is None
    assert replace(dynamic, tile_k=128, stages=2).why_not(BLOCKS) == (
        "dynamic is False where blocks have scales, got True"
    )


def test_eviction_is_part_of_the_name():
    assert CuteConfig(64, 128, 128, 1, 8, PINGPONG, stream_b=True).name == "64x128x128_1_8_pingpong_8_stream"


def test_accumulators_of_the_largest_tiles_fit():
    assert CuteConfig(128, 192, schedule=PINGPONG).why_not(PLAIN) is None
    assert CuteConfig(256, 192, stages=3, schedule=COOPERATIVE).why_not(PLAIN) is None


GATED = Form(epilogue="gated", activation=Activation(Function.SILU))
UNGATED = Form(epilogue="gated", activation=Activation(Function.RELU2, gated=False))


@pytest.mark.parametrize("epilogue", ["gated", "gated_pre", "gated_backward"])
@pytest.mark.parametrize("form", [GATED, UNGATED, GATED._replace(b_major="n")])
def test_configurations_fitted_to_an_activation(form, epilogue):
    """Blocks of C divide a tile's columns, whole sets of them have room, and where the argument is read there are two
    sets; and of every kind of configuration some are left."""
    form = form._replace(epilogue=epilogue)
    found = configs_for(form)
    assert not [config.why_not(form) for config in found if config.why_not(form)]
    assert {config.dynamic for config in found} == {False, True}
    assert {config.tile_m for config in found} == {64, 128}
    for config in found:
        sets, rest = divmod(config.store_blocks(form), form.stores)
        assert rest == 0
        assert sets == 2 if epilogue == "gated_backward" else sets >= 1
        assert config == config.fitted(form), "it is fitted once"
        for shape in config.shapes:
            assert shape.tile_n // form.halves % (config.store_row_bytes // 2) == 0


def test_fitting():
    wide = CuteConfig(128, 256, 64, 2, 4, COOPERATIVE)
    assert wide.fitted(PLAIN) is wide
    assert wide.fitted(GATED) == wide
    # Three blocks of 64 bytes a row for each warp group where there is room for two of 128.
    both = wide.fitted(GATED._replace(epilogue="gated_pre"))
    assert (both.store_row_bytes, both.stages, both.store_blocks(GATED._replace(epilogue="gated_pre"))) == (64, 4, 3)
    backward = GATED._replace(epilogue="gated_backward")
    assert (wide.fitted(backward).stages, wide.fitted(backward).store_blocks(backward)) == (3, 6)
    narrow = CuteConfig(128, 192, 64, 2, 4, PINGPONG)
    assert narrow.fitted(GATED).store_row_bytes == 64, "96 columns of C"
    assert narrow.fitted(UNGATED).store_row_bytes == 128


@pytest.mark.parametrize(
    ("config", "form", "said"),
    [
        (CuteConfig(128, 192, 64, 2, 4, PINGPONG), GATED, "store_row_bytes is 64 where a tile has 192 columns of gate"),
        (
            CuteConfig(128, 192, 64, 2, 4, PINGPONG, store_row_bytes=64),
            GATED._replace(b_major="n"),
            "tile_n is 128 or 256 where columns of gate and up are contiguous, got 192",
        ),
        (CuteConfig(128, 128, 64), GATED._replace(epilogue="gated_backward"), "blocks of 64 bytes and tile_n from 128"),
        (
            CuteConfig(128, 256, 64, 2, 4, COOPERATIVE),
            GATED._replace(epilogue="gated_pre"),
            "4 stages need 245760 bytes of shared memory",
        ),
    ],
)
def test_what_cannot_have_an_activation_is_said(config, form, said):
    assert said in config.why_not(form)
