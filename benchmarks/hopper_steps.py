"""Measure the gain of each step towards the production kernel for Hopper. Lesson 10 draws from this record."""

from __future__ import annotations

from dataclasses import replace

import time_model
from course_kernels.bench.tuning import config_times
from course_kernels.engine.tuning import Kind
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig

SECONDS = 60
_IN_TURN = CuteConfig(128, 192, 64, cluster=2, stages=4, schedule=PINGPONG)
_LOW = CuteConfig(64, 256, 64, cluster=2, stages=4, schedule=PINGPONG)
STEPS = (
    CuteConfig(128, 256, 64, cluster=2, stages=4, schedule=COOPERATIVE),
    _IN_TURN,
    replace(_IN_TURN, tile_n=128, stages=6),
    _LOW,
    *(replace(each, cluster=1) for each in (_IN_TURN, _LOW)),
    *(replace(_IN_TURN, swizzle_size=rows) for rows in (4, 16)),
    replace(_IN_TURN, stages=5, last_tile_n=128, tail_tile_n=256),
    replace(_IN_TURN, split_last_wave=True),
)


def measure() -> dict:
    """Forward products of published layers and random shapes, in a drawn order, as many as there is time for. Fails
    where a result is wrong."""
    among = {Kind("m", "k"): STEPS}
    rows = time_model.rows()
    config_times.compile_ahead(rows, ("forward",), among)
    found = config_times.measure(rows, ("forward",), seconds=SECONDS, among=among)
    if failed := config_times.failures(found):
        raise AssertionError(f"wrong or failed: {failed}")
    return {"rows": found}
