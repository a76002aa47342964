"""Exercise 12b: the call with a shuffled weight."""

from __future__ import annotations

from collections.abc import Callable

import torch


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the call, which also says whether the argument is still what it was."""
    weight = inputs["weight"].to(watch.device, copy=True)

    def call(answer) -> list:
        result = answer(weight)
        return [result, torch.equal(weight.cpu().view(torch.uint8), inputs["weight"].view(torch.uint8))]

    return call
