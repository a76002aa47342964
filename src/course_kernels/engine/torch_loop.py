"""Grouped products by torch alone: one after another, in float32, rounded once.

torch's own grouped_mm is not used: it leaves the tail undefined.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.engine.descriptors import unshuffled
from course_kernels.engine.product import Problem, Product
from course_kernels.engine.scale_blocks import BLOCK, blocks_restart, first_column
from course_kernels.engine.scaling import Scaling, dequantized


class Plan:
    """A loop over the groups. Running it waits for the device, to read the groups' ends or counts."""

    def __init__(self, problem: Problem):
        self._problem = problem

    @torch.no_grad()
    def run(self, product: Product, out: Tensor) -> None:
        """Write the product to ``out``, or add it. Writes zeros to the tail unless it is kept, and nothing to rows that
        do not count."""
        mode, extent = self._problem.mode, _extent(self._problem.mode, product)
        given = [] if product.offs is None else product.offs.tolist()
        start = 0
        with torch.autocast(product.a.device.type, enabled=False):  # autocast would round the widened operands
            for g in range(self._problem.G):
                if mode == "masked":
                    start, end = 0, max(0, min(given[g], extent))
                else:
                    # Ends that decrease or reach too far must not lead out of the operands; check=True reports them.
                    end = extent if mode == "batch" else max(start, min(given[g], extent))
                # Adding zeros would change -0.0, and the bits of a NaN.
                if end > start or (mode == "k" and not self._problem.accumulate):
                    self._multiply(product, out, g, slice(start, end), extent)
                start = 0 if mode == "batch" else end
        if not self._problem.keep_tail and mode in ("m", "n"):
            (out[start:] if mode == "m" else out[:, start:]).zero_()

    def _multiply(self, product: Product, out: Tensor, g: int, part: slice, extent: int) -> None:
        """Compute one group's product; ``part`` is its slice of the ragged extent."""
        problem, bias = self._problem, product.epilogue.bias
        a, b, c = _parts(problem, g, part, product, out)
        if problem.block_lines is not None:
            factors = _block_factors(problem, product.scaling, g, part, extent)
            a, b = (dequantized(*each) for each in zip((a, b.mT), factors, problem.block_lines))
            result = a @ b.mT
        else:
            result = a.float() @ b.float()
        if problem.scaling is not None and problem.block_lines is None:
            rows, cols = product.scaling
            rows = rows if problem.mode == "m" else rows[g]
            result *= (rows[part] if problem.mode in ("m", "masked") else rows)[:, None]
            result *= cols[part] if problem.mode == "n" else cols[g]
        if bias is not None:
            result += bias[g].float()
        if problem.accumulate:
            result += c.float()
        c.copy_(result)


def _extent(mode: str, product: Product) -> int:
    """The extent that the groups divide; in a batch and with counted rows, the rows that each has room for."""
    return {"n": product.b.shape[-1], "k": product.a.shape[-1]}.get(mode, product.a.shape[-2])


def _parts(problem: Problem, g: int, part: slice, product: Product, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views of one group's operands and result."""
    a, b = product.a, product.b
    if problem.mode == "m":
        return a[part], b[g], out[part]
    if problem.mode == "n":
        return a[g], b[:, part], out[:, part]
    if problem.mode == "k":
        return a[:, part], b[part], out[g]
    if problem.pack:
        return a[g, part], unshuffled(b.mT[g]).mT, out[g, part]
    return a[g, part], b[g], out[g, part]


def _block_factors(problem: Problem, scaling: Scaling, g: int, part: slice, extent: int) -> tuple[Tensor, Tensor]:
    """A group's factors of blocks, each (lines or blocks of lines, blocks of K)."""
    scale_a, scale_b, _ = scaling
    if problem.block_lines[1] == BLOCK:
        scale_b = scale_b.mT
    if problem.mode == "k":
        first = first_column(part.start, g if blocks_restart(scale_a, extent, problem.G) else 0)
        of_group = slice(first, first - (part.start - part.stop) // BLOCK)
        return scale_a[:, of_group], scale_b[:, of_group]
    rows = scale_a if problem.mode == "m" else scale_a[g]
    cols = scale_b if problem.mode == "n" else scale_b[g]
    return rows[part] if problem.mode in ("m", "masked") else rows, cols[part] if problem.mode == "n" else cols
