"""Chunks in order, with stand-ins; values and gradients of ranks are those of ``test_expert_parallel``."""

from __future__ import annotations

import torch

from course_kernels.distributed.expert_parallel import Dispatched
from course_kernels.distributed.motion import Choices
from course_kernels.distributed.overlap import overlapped
from course_kernels.moe import Routing


class Noting:
    """Halves of a journey that lead nowhere."""

    def __init__(self):
        self.steps = []

    def dispatch(self, x, ids, weights):
        self.steps.append(("dispatch", x.shape[0]))
        return Dispatched(x, Choices(ids, weights, Routing.of(ids, 2)), x.shape[0])

    def combine(self, y, handle):
        self.steps.append(("combine", handle))
        return y


def test_the_next_chunk_leaves_before_results_return():
    ep, x = Noting(), torch.arange(14.0).reshape(7, 2)

    def layer(rows, weights, routing):
        ep.steps.append(("experts", rows.shape[0]))
        return rows * 2

    out = overlapped(ep, layer, x, torch.zeros(7, 1, dtype=torch.int64), torch.ones(7, 1), 3)
    assert torch.equal(out, x * 2)
    assert ep.steps == [
        ("dispatch", 2), ("experts", 2), ("dispatch", 2), ("combine", 2), ("experts", 2), ("dispatch", 3),
        ("combine", 2), ("experts", 3), ("combine", 3),
    ]  # fmt: skip
