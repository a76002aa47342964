"""A token's row to each of its sends, and the sum of what came back: a kernel on GPUs, torch on CPUs."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.distributed.plan import Homes
from course_kernels.moe import Routing, steps


def spread(x: Tensor, routing: Routing, count: int) -> Tensor:
    """Gather the rows of ``count`` sends from tokens x (T, H): (count, H), contiguous."""
    if not count or not x.shape[1]:
        return x.new_empty(count, x.shape[1])
    routing = routing.shortened(count)
    if x.device.type == "cpu":
        return x.index_select(0, routing.tokens.long())
    return steps.gather(x, routing)


def total(rows: Tensor, routing: Routing | Homes, tokens: int) -> Tensor:
    """Sum each token's rows (any, H), which ``routing.rows`` has, in float32, in the order of ranks, rounded once:
    (T, H) of the rows' dtype. A token without any gets zeros."""
    if not rows.numel() or not tokens:
        return rows.new_zeros(tokens, rows.shape[1])
    if rows.device.type != "cpu":
        return steps.combine(rows.contiguous(), routing, tokens)
    places = routing.rows.long()
    result = torch.zeros(tokens, rows.shape[1], dtype=torch.float32, device=rows.device)
    for place in places.unbind(1):
        found = rows.index_select(0, place.clamp(min=0)).float()
        result += torch.where((place >= 0)[:, None], found, 0.0)
    return result.to(rows.dtype)
