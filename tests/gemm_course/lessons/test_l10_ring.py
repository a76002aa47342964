"""The model of the ring obeys its barriers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig
from gemm_course.lessons import l10_ring

SHARED = CuteConfig(128, 256, 64, 2, 4, COOPERATIVE)
EACH = CuteConfig(128, 192, 64, 2, 4, PINGPONG)
schedules = pytest.mark.parametrize("config", [SHARED, EACH], ids=["cooperative", "ping-pong"])


@schedules
@pytest.mark.parametrize("stages", [2, 3, 6])
def test_steps_obey_the_barriers(config, stages):
    steps, stores = l10_ring.simulate(replace(config, stages=stages), 3, 5, copy=3, multiply=2, store=7)
    assert [(step.tile, step.block) for step in steps] == [(tile, block) for tile in range(3) for block in range(5)]
    for step in steps:
        assert step.full == step.asked + 3
        assert step.start >= step.full
        assert step.end == step.start + 2
        assert step.free >= step.end
    for one, other in itertools.pairwise(steps):
        assert other.start >= one.end, "the tensor cores do one product at a time"
        assert other.asked >= one.asked, "one warp asks, in order"
    for one, other in zip(steps, steps[stages:]):
        assert other.stage == one.stage
        assert other.asked >= one.free
        assert other.asked == max(one.free, steps[steps.index(other) - 1].asked), "and not a moment later"
    assert [store.tile for store in stores] == [0, 1, 2]


def test_a_stage_is_kept_until_the_next_product_is_issued_and_at_a_tiles_end_until_it_is_done():
    steps, _ = l10_ring.simulate(replace(SHARED, stages=2), 1, 4, copy=10, multiply=1)
    assert steps[1].free == steps[2].start > steps[1].end
    assert steps[3].free == steps[3].end


def test_one_stage_would_wait_for_itself():
    with pytest.raises(ValueError, match=r"at least 2 stages.*got 1"):
        l10_ring.simulate(replace(SHARED, stages=1), 1, 2)


def test_cooperative_warp_groups_store_and_nobody_multiplies():
    steps, stores = l10_ring.simulate(SHARED, 2, 4, store=6)
    assert [(store.group, store.end - store.start) for store in stores] == [(None, 3), (None, 3)]
    assert steps[4].start == stores[0].end
    assert steps[4].asked < stores[0].start, "the copies do not wait for the store"
    assert l10_ring.busy(steps) == pytest.approx(8 / 11)


def test_ping_pong_hides_a_store_behind_the_others_products():
    steps, stores = l10_ring.simulate(EACH, 4, 8, store=6)
    assert [store.group for store in stores] == [0, 1, 0, 1]
    assert {store.end - store.start for store in stores} == {6}, "one warp group alone takes the whole time"
    assert l10_ring.busy(steps) == 1
    steps, stores = l10_ring.simulate(EACH, 3, 2, store=6)
    assert steps[4].start == stores[0].end, "a store longer than the other's products shows"
