"""Exercise 01: the call with sizes of groups."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gemm_course.runner import host_syncs

NAMES = ("ends", "group")


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns the call, which records host syncs and results that are left on the host."""
    sizes = inputs["sizes"].to(watch.device)

    def call(answer) -> object:
        with host_syncs.recorded(watch) as there:
            value = answer(sizes, inputs["total_m"])
        if type(value) in (list, tuple):
            for name, each in zip(NAMES, value):
                if isinstance(each, torch.Tensor) and not there(each):
                    watch.note("host", name)
        return value

    return call
