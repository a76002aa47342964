"""Grouped products by torch alone: one after another, in float32, rounded once.

Not torch's own grouped_mm, which leaves the tail undefined.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.engine.product import Operands, Problem
from course_kernels.engine.scaling import BLOCK, blocks_restart, dequantized


def supports(problem: Problem, operands: Operands, out: Tensor) -> bool:
    """Every product, on every device."""
    return True


def plan(problem: Problem, operands: Operands, out: Tensor) -> Plan:
    """The loop for products like this one."""
    return Plan(problem)


class Plan:
    """A loop over the groups. Running it waits for the device, to read ``offs``."""

    def __init__(self, problem: Problem):
        self._mode, self._keep_tail = problem.mode, problem.options.keep_tail
        self._accumulate = problem.options.accumulate
        self._blocks = problem.block_lines

    @torch.no_grad()
    def run(self, operands: Operands, out: Tensor) -> None:
        """Write the product to ``out``, or add it; zeros to the tail unless it is kept."""
        mode = self._mode
        mat_a, mat_b, offs, bias, scale_a, scale_b = operands
        extent = {"m": mat_a.shape[0], "n": mat_b.shape[-1], "k": mat_a.shape[-1], "batch": 0}[mode]
        ends = [] if offs is None else offs.tolist()
        start = 0
        with torch.autocast(mat_a.device.type, enabled=False):  # it would round the widened operands again
            for g in range(mat_a.shape[0] if mode == "batch" else len(ends)):
                # Ends that decrease or reach too far must not lead out of the operands; check=True reports them.
                end = 0 if mode == "batch" else max(start, min(ends[g], extent))
                if self._accumulate and end == start:
                    continue  # adding zeros would change -0.0, and the bits of a NaN
                part = slice(start, end)
                a, b, c = _parts(mode, g, part, mat_a, mat_b, out)
                if self._blocks is not None:
                    factors = self._factors(g, start, end, extent, len(ends), scale_a, scale_b)
                    lines = zip((a, b.mT), factors, self._blocks)
                    a, b = (dequantized(*each) for each in lines)
                    product = a @ b.mT
                else:
                    product = a.float() @ b.float()
                if scale_a is not None and self._blocks is None:
                    product *= (scale_a[part] if mode == "m" else scale_a[g])[:, None]
                    product *= scale_b[part] if mode == "n" else scale_b[g]
                if bias is not None:
                    product += bias[g].float()
                if self._accumulate:
                    product += c.float()
                c.copy_(product)
                start = end
        if not self._keep_tail and mode in ("m", "n"):
            (out[start:] if mode == "m" else out[:, start:]).zero_()

    def _factors(self, g, start, end, total, groups, scale_a, scale_b):
        """A group's factors of blocks, each (lines, or their blocks, by blocks of K)."""
        if self._blocks[1] == BLOCK:
            scale_b = scale_b.mT
        if self._mode == "k":
            first = start // BLOCK + (g if blocks_restart(scale_a, total, groups) else 0)
            of_group = slice(first, first - (start - end) // BLOCK)
            return scale_a[:, of_group], scale_b[:, of_group]
        part = slice(start, end)
        return (
            scale_a[part] if self._mode == "m" else scale_a[g],
            scale_b[part] if self._mode == "n" else scale_b[g],
        )


def _parts(mode, g, part, mat_a, mat_b, out):
    """Views of one group's operands and result."""
    if mode == "m":
        return mat_a[part], mat_b[g], out[part]
    if mode == "n":
        return mat_a[g], mat_b[:, part], out[:, part]
    if mode == "k":
        return mat_a[:, part], mat_b[part], out[g]
    return mat_a[g], mat_b[g], out[g]
