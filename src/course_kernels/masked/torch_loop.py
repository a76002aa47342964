"""Masked grouped products by torch alone: one group after another, in float32, rounded once."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.kernels.codes import Scales
from course_kernels.masked.problem import SCALED, Operands, Problem
from course_kernels.masked.shuffle import unshuffle_weight


class Plan:
    """A loop over the groups. Running it waits for the device, to read ``group_layout``."""

    def __init__(self, problem: Problem):
        self._scales, self._shuffled = problem.scales, problem.options.shuffled

    @torch.no_grad()
    def run(self, operands: Operands) -> None:
        """Write the rows that count, and no others."""
        x, w, y, sizes, x_scale, w_scale = operands
        with torch.autocast(x.device.type, enabled=False):  # it would round the widened operands again
            for g, size in enumerate(sizes.tolist()):
                rows = max(0, min(size, x.shape[1]))
                if not rows or not y.shape[2]:
                    continue
                weight = unshuffle_weight(w[g]) if self._shuffled else w[g]
                a, b = x[g, :rows].float(), weight.float()
                if self._scales == Scales.BLOCKS:
                    product = _multiply_blocks(a, b, x_scale[g, :rows], w_scale[g])
                else:
                    product = a @ b.mT
                if self._scales == Scales.LINES:
                    product *= x_scale[g, :rows]
                    product *= w_scale[g, :, 0]
                y[g, :rows].copy_(product)


def _multiply_blocks(a: Tensor, b: Tensor, x_scale: Tensor, w_scale: Tensor) -> Tensor:
    """The sum over blocks of K of scaled products: ``x_scale`` (rows, blocks) and ``w_scale`` (blocks of N, blocks)."""
    total = a.new_zeros(a.shape[0], b.shape[0])
    of_lines = w_scale.repeat_interleave(SCALED, 0)[: b.shape[0]]
    for block in range(x_scale.shape[1]):
        at = slice(block * SCALED, (block + 1) * SCALED)
        total += a[:, at] @ b[:, at].mT * (x_scale[:, block, None] * of_lines[:, block])
    return total
