"""Rules by hand: which rows are few, tiles that hold them, and the tiles of AMD's GPUs."""

from __future__ import annotations

import pytest

from course_kernels.engine.tuning import Extents, Gpu, Kind
from course_kernels.engine.tuning.fallback_rules import NARROW, all_by_hand, by_hand, rows_class
from tuning_shapes import SHAPES

A100 = Gpu("sm_80", 108, 1.9)


def test_few_rows_are_rounded_up_and_others_to_the_nearest_power_of_two():
    for rows, rounded in (
        (0, 16),
        (16, 16),
        (17, 32),
        (33, 64),
        (64, 64),
        (65, 128),
        (181, 128),
        (182, 256),
        (8500, 8192),
    ):
        assert rows_class(rows) == rounded
    assert rows_class(2**60) == 2**20


@pytest.mark.parametrize("uses_tma", [True, False])
def test_few_rows_get_a_tile_that_holds_them(uses_tma):
    for rows, block_m in ((1, 16), (16, 16), (20, 32), (50, 64), (300, 128)):
        assert by_hand(Kind("m"), Extents(rows, 2048, 7168, 32), A100, uses_tma)[0].block_m == block_m


def test_gpus_that_nobody_tried_have_one_narrow_tile():
    for arch in ("sm_75", "gfx", "gfx90a"):
        assert by_hand(Kind("m"), Extents(300, 2048, 2048, 8), Gpu(arch, 100, 1.0), False) == (NARROW,)


@pytest.mark.parametrize(("arch", "units", "largest"), [("gfx942", 304, 256 * 256), ("gfx950", 256, 128 * 256)])
def test_an_amd_gpu_has_large_tiles_where_there_are_enough_of_them(arch, units, largest):
    gpu = Gpu(arch, units, 5.0)

    def area(*extents, along="m"):
        config = by_hand(Kind(along), Extents(*extents), gpu, False)[0]
        assert (config.num_xcds, config.schedule, config.num_stages) == (8, "round_robin", 2)
        assert config in all_by_hand(Kind(along), gpu, False)
        return config.block_m * config.block_n

    assert area(8192, 8192, 512, 8) == largest
    assert area(8192, 8192, 512, 8, along="k") == 128 * 256, "256×256 spills where a result is added"
    assert area(1024, 512, 512, 8) == 64 * 128
    assert area(128, 512, 512, 8) == 64 * 64
    assert area(128, 512, 512, 128) == (128 * 128 if arch == "gfx942" else 128 * 256)
    for few in (16, 32, 64):
        assert by_hand(Kind("m"), Extents(few, 4096, 4096, 64), gpu, False)[0].block_m == few
    for extents in SHAPES:
        area(*extents), area(*extents, along="k")
