"""Buckets of shapes and their edges, the defaults, and the candidates that are measured."""

from __future__ import annotations

import math
import random

import pytest

from course_kernels.dtypes import TYPE_BYTES
from course_kernels.engine.tuning import lookup as tuned
from course_kernels.engine.tuning.defaults import Bucket, candidates, defaults
from course_kernels.engine.tuning.lookup import OPS, get_config
from tuning_shapes import SHAPES


@pytest.mark.parametrize("extent", [16, 17, 22, 23, 45, 46, 90, 91, 1024, 1448, 1449, 5793, 6144, 7168, 14336])
def test_extents_go_to_the_power_of_two_that_is_nearest_by_ratio(extent):
    expected = 2 ** math.floor(math.log2(extent) + 0.5)  # no extent lies on an edge: √2 is irrational
    assert Bucket.of("grouped_mm", 4096, extent, 4096, 4) == (1024, 4096, expected, 4)
    assert Bucket.of("grouped_mm", 4096, 4096, extent, 4) == (1024, expected, 4096, 4)
    assert Bucket.of("grouped_mm_k", extent, 4096, 4096, 4) == (expected, 4096, 1024, 4)
    assert Bucket.of("grouped_mm_k", 4096, extent * 100, 4096, 100).K == expected
    assert Bucket.of("grouped_mm", 4096, 4096, 4096, extent).G == min(expected, 4096)


@pytest.mark.parametrize(
    "rows, bucket",
    [(0, 16), (0.1, 16), (4, 16), (16, 16), (16.01, 32), (20, 32), (32, 32), (33, 64), (64, 64), (64.01, 128),
     (181, 128), (182, 256), (256, 256), (682.67, 512), (8125, 8192), (8500, 8192)],
)  # fmt: skip
def test_few_rows_are_rounded_up_to_what_holds_them(rows, bucket):
    assert Bucket.of("grouped_mm", round(rows * 100), 64, 64, 100).M == bucket
    assert Bucket.of("grouped_mm_batch", math.ceil(rows), 64, 64, 100).M == bucket


def test_extents_are_clamped_so_that_buckets_are_few():
    assert Bucket.of("grouped_mm", 0, 0, 0, 0) == (16, 16, 16, 1)
    assert Bucket.of("grouped_mm", 2**60, 2**60, 2**60, 2**60) == (16, 2**20, 2**20, 4096)
    assert Bucket.of("grouped_mm_k", 1, 1, 1, 1) == (16, 16, 16, 1)


def test_totals_that_jitter_around_a_power_of_two_stay_in_one_bucket():
    draw = random.Random(1)
    totals = [round(32768 * draw.uniform(0.75, 1.3)) for _ in range(200)]
    assert len({Bucket.of("grouped_mm", total, 4096, 4096, 8) for total in totals}) == 1


def test_few_rows_get_a_tile_that_holds_them(tables):
    for rows, block_m in ((1, 16), (16, 16), (20, 32), (50, 64), (300, 128)):
        config = get_config("grouped_mm", rows * 32, 2048, 7168, 32, arch=90)
        assert config.block_m == block_m


@pytest.mark.parametrize("dtype", TYPE_BYTES)
@pytest.mark.parametrize("op", OPS)
def test_candidates_begin_with_the_default_and_are_valid_on_sm_90(op, dtype):
    limits = dict(capability=(9, 0), shared_limit=232_448)
    for m, n, k, g in SHAPES:
        bucket = Bucket.of(op, m * (g if op == "grouped_mm" else 1), k * (g if op == "grouped_mm_k" else 1), n, g)
        found = candidates(op, bucket, dtype)
        assert found[0] == defaults(op, bucket, dtype, True)[0]
        assert 2 <= len(found) == len(set(found)) <= 9
        for config in found:
            assert config.valid_for(tuned.kernel_of(op), TYPE_BYTES[dtype], **limits) is None
            need = (
                config.shared_memory(tuned.kernel_of(op), TYPE_BYTES[dtype], max(2, TYPE_BYTES[dtype]), (9, 0)) + 1024
            )
            assert config.programs_per_sm * need <= 228 * 1024, config
