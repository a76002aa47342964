"""The pictures of the Hopper kernel follow from a configuration; the model behind two of them obeys its barriers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig
from drawn import boxes, texts, title
from gemm_course.figures import f10_kernel as cute_kernel
from gemm_course.lessons import l10_ring, records

SHARED = CuteConfig(128, 256, 64, 2, 4, COOPERATIVE)
EACH = CuteConfig(128, 192, 64, 2, 4, PINGPONG)
schedules = pytest.mark.parametrize("config", [SHARED, EACH], ids=["cooperative", "ping-pong"])


def test_columns_are_registers_and_sums_of_a_thread():
    shared, _, each, _ = cute_kernel.roles([SHARED, EACH], 40, 232).axes
    assert [box[2:] for box in boxes(shared, "registers")] == [(128, 40), (128, 232), (128, 232)]
    assert [box[3] for box in boxes(shared, "sums")] == [128, 128]
    assert [box[3] for box in boxes(each, "sums")] == [192, 192]
    (share,) = [line for line in each.lines if line.get_gid() == "share"]
    assert set(share.get_ydata()) == {168}, "a warp's registers come in units of 8"
    assert each.get_ylim()[1] > 232
    assert title(each).startswith("ping-pong")


def test_a_shared_tile_is_divided_by_rows_and_others_belong_to_one_warp_group():
    _, shared, _, each = cute_kernel.roles([replace(SHARED, tile_m=256, tile_n=64), EACH], 40, 232).axes
    assert [box[1] for box in boxes(shared, "rows of 1")] == [0, 128]
    assert [box[1] for box in boxes(shared, "rows of 2")] == [64, 192]
    assert [box[:2] for box in boxes(each, "rows of 1")] == [(0, 0), (0, 64)]
    assert {box[0] for box in boxes(each, "rows of 2")} == {204}, "another tile"


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


def test_the_ring_shows_every_stage_and_both_barriers():
    runs = {f"{stages}": l10_ring.simulate(replace(SHARED, stages=stages), 2, 5) for stages in (2, 4)}
    figure = cute_kernel.ring(runs)
    for axes, (stages, (steps, stores)) in zip(figure.axes, runs.items()):
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == [*(f"stage {i}" for i in range(int(stages))), "warp groups"]
        wanted = [(step.start, step.stage, 1, 0.82) for step in steps]
        assert boxes(axes, "multiplied") == wanted
        assert boxes(axes, "on its way") == [(step.asked, step.stage, 2.5, 0.82) for step in steps]
        assert [box[0] for box in boxes(axes, "full")] == [s.full for s in steps if s.start > s.full]
        assert [box[0] for box in boxes(axes, "kept")] == [s.end for s in steps if s.free > s.end]
        for gid, when in (("full barrier", "full"), ("empty barrier", "free")):
            marks = [line for line in axes.lines if line.get_gid() == gid]
            assert [line.get_xdata()[0] for line in marks] == [getattr(step, when) for step in steps]
        assert texts(axes) == [*(str(step.block) for step in steps), "store", "store"]
        assert title(axes) == f"{stages}: the last tile is stored after {stores[-1].end:g}"
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()


def test_turns_show_both_warp_groups_at_one_tile_or_at_two():
    runs = {"together": l10_ring.simulate(SHARED, 2, 6), "in turn": l10_ring.simulate(EACH, 2, 6)}
    together, in_turn = cute_kernel.warp_group_turns(runs).axes
    assert boxes(together, "multiplies 1") == [(2.5, 0, 6, 0.9), (10.5, 0, 6, 0.9)]
    assert [box[0] for box in boxes(together, "multiplies 2")] == [2.5, 10.5]
    assert boxes(in_turn, "multiplies 1") == [(2.5, 0, 6, 0.9)]
    assert boxes(in_turn, "multiplies 2") == [(8.5, 1, 6, 0.9)]
    assert boxes(in_turn, "store") == [(8.5, 0, 4, 0.9), (14.5, 1, 4, 0.9)]
    assert texts(in_turn) == ["tile 0", "store", "tile 1", "store"]
    assert title(together) == "together: the tensor cores multiply 86% of the time"
    assert title(in_turn) == "in turn: the tensor cores multiply 100% of the time"


def test_a_store_too_short_for_its_word_is_a_box_alone():
    (axes,) = cute_kernel.warp_group_turns({"long": l10_ring.simulate(EACH, 2, 60)}).axes
    assert texts(axes) == ["tile 0", "tile 1"]
    assert len(boxes(axes, "store")) == 2


def test_gains_are_ratios_of_the_rows_that_have_both():
    one, two = replace(SHARED, cluster=1), replace(SHARED, cluster=2)
    us = {f"cute {one.name}": 30.0, f"cute {two.name}": 20.0}
    row = {"N": 256, "K": 512, "sizes": [3, 4], **{of: {"us": us} for of in ("forward", "dA", "dB")}}
    rows = {"a": row, "b": row | {"dA": {"us": {f"cute {one.name}": 5.0}}}, "c": {"K": 9}}
    assert records.ratios(rows, "dA", one, two) == [(256, 1.5)]
    assert [records.ratios({"a": row}, of, one, two)[0][0] for of in ("forward", "dB")] == [512, 3.5]
    (axes,) = cute_kernel.gains({"clusters": [(512, 1.5), (1024, 1.1), (64, 1.2)]}).axes
    assert title(axes) == "clusters\nmedian 1.20, 3 products"
    assert [each.get_gid() for each in axes.collections] == ["rows"]
