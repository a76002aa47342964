"""Exercise 05: two calls with the costs of tiles."""

from __future__ import annotations

import copy
from collections.abc import Callable


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the call, which asks twice for the same schedule."""

    def call(answer) -> dict:
        costs = list(inputs["costs"])
        first = answer(costs, inputs["programs"])
        if isinstance(first, (list, tuple)):  # of anything else only the name of its type is reported
            first = copy.deepcopy(first)
        after = list(costs)
        return {"first": first, "after": after, "second": answer(list(inputs["costs"]), inputs["programs"])}

    return call
