"""Exercise 11b: the call with a gradient and the ends of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

KERNEL = "column_sums"
BLOCK_M, BLOCK_N = 16, 32  # rows and columns of the stub's blocks: different, so that one for the other shows


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the call of the answer, which launches a kernel of its own."""
    grad = watch.matrix("grad", inputs["grad"])
    # Its stride is not that of `grad`. So a kernel that takes one for the other gives a wrong result.
    out = watch.output("out", (len(inputs["ends"]), grad.shape[1]), torch.float32, room=8)
    ends = watch.table("ends", torch.tensor(inputs["ends"], dtype=torch.int32))

    def call(answer) -> dict | None:
        answer(grad, ends, out)
        programs = watch.programs()
        own = getattr(answer, "__globals__", {}).get(KERNEL)
        others = [getattr(each, "__name__", "") for each in watch.launched if each is not own]
        return programs and {"programs": programs, "launches": len(watch.launched), "others": others[:1]}

    return call


def builds(answer) -> Iterator[tuple]:
    """The builds: (kernel, types of its run-time arguments, values of the others)."""
    types = {"grad_ptr": "*fp16", "ends_ptr": "*i32", "out_ptr": "*fp32"}
    types |= dict.fromkeys(("N", "stride_grad", "stride_out"), "i32")
    blocks = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}
    kernel = getattr(answer, KERNEL, None)
    if getattr(kernel, "arg_names", None) != [*types, *blocks]:
        raise TypeError(f"the kernel must be {KERNEL}({', '.join([*types, *blocks])}), as it was given to you")
    yield kernel, types, blocks
