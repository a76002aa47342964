"""Exercise 14b: the call with a product's result, a gradient, and the places of the routing weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

BLOCK_M, BLOCK_I = 16, 32  # rows and columns of the stub's blocks: different, so that one for the other shows


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the call of the answer, which launches a kernel of its own."""
    # All three matrices have rows of different strides, so that one for another gives a wrong result.
    pre, grad = watch.matrix("pre", inputs["pre"]), watch.matrix("grad", inputs["grad"], room=8)
    out = watch.output("out", inputs["shape"], torch.float32, room=16)
    places, count = (
        watch.table(name, torch.tensor(inputs[name], dtype=torch.int32)) for name in ("places", "count")
    )  # fmt: skip

    def call(answer) -> tuple[int, int] | None:
        answer(pre, grad, places, count, out)
        return watch.programs()

    return call


def builds(answer) -> Iterator[tuple]:
    """The builds: (kernel, types of its run-time arguments, values of the others)."""
    types = {"pre_ptr": "*fp16", "grad_ptr": "*fp16", "places_ptr": "*i32", "count_ptr": "*i32", "out_ptr": "*fp32"}
    types |= dict.fromkeys(("positions", "I", "k", "stride_pre", "stride_grad", "stride_out"), "i32")
    blocks = {"BLOCK_M": BLOCK_M, "BLOCK_I": BLOCK_I}
    kernel = getattr(answer, "row_products", None)
    if getattr(kernel, "arg_names", None) != [*types, *blocks]:
        raise TypeError(f"the kernel must be row_products({', '.join([*types, *blocks])}), as it was given to you")
    yield kernel, types, blocks
