"""A model of one CTA of the Hopper kernel: its ring of stages, and two warp groups that multiply and store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from course_kernels.kernels.cute_sm90.config import COOPERATIVE, CuteConfig


class Step(NamedTuple):
    """A block of A and one of B on their way through a stage of the ring; the last five are times."""

    tile: int
    block: int  # along K
    stage: int
    asked: float  # the stage is free, and the copies start
    full: float  # the bytes have arrived
    start: float  # the product starts
    end: float  # the product ends
    free: float  # the warp groups give the stage back


class Store(NamedTuple):
    """A tile on its way to C, by warp group 0 or 1, or by both where ``group`` is None."""

    tile: int
    group: int | None
    start: float
    end: float


def simulate(
    config: CuteConfig, tiles: int, blocks: int, *, copy: float = 2.5, multiply: float = 1.0, store: float = 4.0
) -> tuple[list[Step], list[Store]]:
    """A model of one CTA: one warp loads ahead into free stages, tensor cores multiply in order.

    A stage is given back when its product is done and the next one of the tile has been issued, as in the kernel. The
    tensor cores do one product at a time, of either warp group.

    Args:
        config: of its fields the model uses the schedule and the stages, at least 2.
        blocks: of K in each tile.
        copy, multiply, store: time of a block's copy and product, and of a tile's store by one warp group; two that
            share a tile take half as long.

    Returns:
        Steps and stores in the order of their starts, in the arguments' unit of time.
    """
    if config.stages < 2:
        raise ValueError(f"config must have at least 2 stages: one is given back after the next, got {config.stages}")
    shared = config.schedule == COOPERATIVE
    free = [0.0] * config.stages
    steps: list[Step] = []
    stores: list[Store] = []
    ready = [0.0, 0.0]  # when the warp groups of this tile have stored their last one
    done = 0.0
    for tile in range(tiles):
        group = 0 if shared else tile % 2
        for block in range(blocks):
            stage = len(steps) % config.stages
            asked = free[stage]  # later than the one before: stages are given back in order
            start = max(asked + copy, done, ready[group])
            if block:
                steps[-1] = steps[-1]._replace(free=start)
                free[steps[-1].stage] = start
            done = start + multiply
            steps.append(Step(tile, block, stage, asked, asked + copy, start, done, done))
            free[stage] = done
        ready[group] = done + (store / 2 if shared else store)
        stores.append(Store(tile, None if shared else group, done, ready[group]))
    return steps, stores


def busy(steps: Sequence[Step]) -> float:
    """Share of the time in which the tensor cores multiply, from the first product's start to the last one's end."""
    return sum(step.end - step.start for step in steps) / (steps[-1].end - steps[0].start)
