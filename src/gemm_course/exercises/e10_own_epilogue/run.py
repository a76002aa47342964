"""Exercise 10: the answer as the epilogue of lesson 10's kernel, compiled for Hopper, and run where there is one."""

from __future__ import annotations

import linecache
from collections.abc import Callable

import torch

from gemm_course.lessons import hopper_kernel

linecache.getlines(hopper_kernel.__file__)  # now: CuTe DSL reads the source later, when files can no longer be opened
_compiled: dict[tuple, tuple[Callable, str]] = {}  # by answer and columns of a tile


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the compilation, which gives PTX, and on a Hopper GPU the product as well."""
    runs = watch.device.type == "cuda" and torch.cuda.get_device_capability(watch.device) == (9, 0)
    operands = [inputs[name].to(watch.device, torch.bfloat16) for name in "ab"] if runs else []

    def call(answer) -> dict:
        key = answer, inputs["tile_n"]
        if key not in _compiled:
            _compiled[key] = hopper_kernel.compile_product(*key)
        run, text = _compiled[key]
        found = {"ptx": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}
        if runs:
            a, b = operands
            c = torch.full((len(a), len(b)), torch.nan, dtype=a.dtype, device=a.device)
            run(a, b, c)
            found["c"] = c.cpu()
        return found

    return call
