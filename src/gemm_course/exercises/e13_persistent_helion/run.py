"""Exercise 13: the walk of all workers, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gemm_course.exercises.e13_persistent_helion.language import (
    BLOCK_M,
    BLOCK_N,
    COMPUTE_TILE,
    COUNT_TILE_ROWS,
    LANGUAGE,
    Given,
    counting,
    operand,
)

# What an answer's process has in place of `import helion.language as hl`, and of what Helion makes of Python's own.
GIVEN = {"hl": Given(), "range": counting}


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the walk of all workers, one after the other."""
    offsets = torch.tensor([0, *inputs["sizes"]]).cumsum(0).to(torch.int32)
    total_m, N = int(offsets[-1]), inputs["N"]
    width = max(2, 1 << (len(inputs["sizes"]) - 1).bit_length())
    operands = operand("A_packed", total_m, 1), operand("B", 1, N), offsets, operand("out", total_m, N)

    def call(answer) -> dict:
        LANGUAGE.start()
        answer(*operands, inputs["workers"], width, BLOCK_M, BLOCK_N, COUNT_TILE_ROWS, COMPUTE_TILE)
        return {"tiles": LANGUAGE.tiles, "skipped": [list(each) for each in LANGUAGE.skipped.items()]}

    return call
