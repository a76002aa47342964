"""Exercise 02: the softmax of rows. The answer is the whole kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns one launch of the answer, with a block as wide as a row."""
    (m, n), block_m = inputs["x"].shape, inputs["block_m"]
    x, y = watch.matrix("X", inputs["x"]), watch.output("Y", (m, n), torch.float32, room=8)
    grid, blocks = (triton.cdiv(m, block_m),), (block_m, triton.next_power_of_2(n))
    return lambda answer: answer[grid](x, y, m, n, x.stride(0), y.stride(0), *blocks) and None


def builds(answer) -> Iterator[tuple]:
    """The builds: (kernel, types of its run-time arguments, values of the others)."""
    types = {"x_ptr": "*fp16", "y_ptr": "*fp32", **dict.fromkeys(("M", "N", "ldx", "ldy"), "i32")}
    yield answer.row_softmax, types, {"BLOCK_M": 4, "BLOCK_N": 64}
