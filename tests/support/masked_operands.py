"""Operands of masked products with exact results, and what the product has to be."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.testing import integers, poisoned, strided_like

DEVICE = runtime.device()
FP8, FP8_FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
SIZES = (0, 33, 1, 40)
BLOCK = 128


class Case(NamedTuple):
    """The arguments of ``deepgemm`` but Y, and a check of what it wrote."""

    XQ: Tensor
    WQ: Tensor
    group_layout: Tensor
    x_scale: Tensor | None
    w_scale: Tensor | None

    @property
    def counting(self) -> list[int]:
        """Rows of each group that count."""
        return self.group_layout.clamp(0, self.XQ.shape[1]).tolist()

    def expected(self) -> Tensor:
        """All rows in float64, which sums and scales of these numbers fit into."""
        x, w = self.XQ.double(), self.WQ.double()
        if self.x_scale is None:
            return x @ w.mT
        x_scale = self.x_scale.double().reshape(*x.shape[:2], -1)
        w_scale = self.w_scale.double()
        w_scale = w_scale.reshape(*w_scale.shape, *(1,) * (3 - w_scale.dim()))
        if w_scale.shape[1] not in (1, w.shape[1]) or w_scale.shape[2] > 1 or x_scale.shape[2] > 1:
            x_scale = x_scale.repeat_interleave(BLOCK, 2)[:, :, : x.shape[2]]
            w_scale = w_scale.repeat_interleave(BLOCK, 1)[:, : w.shape[1]]
            w_scale = w_scale.repeat_interleave(BLOCK, 2)[:, :, : w.shape[2]]
        return (x * x_scale) @ (w * w_scale).mT

    def check(self, y: Tensor, before: Tensor) -> None:
        """Rows that count are exact, and no bit of the others has changed."""
        bits = {2: torch.int16, 4: torch.int32}[y.element_size()]
        wanted = self.expected()
        for g, rows in enumerate(self.counting):
            assert torch.equal(y[g, :rows].double(), wanted[g, :rows].to(y.dtype).double()), f"group {g}"
            after, old = (t[g, rows:].contiguous().view(bits) for t in (y, before))
            assert torch.equal(after, old), f"rows of group {g} that do not count were written"


def case(
    dtype=torch.float16, scales="group", sizes=SIZES, max_m=40, N=48, K=64, index=torch.int32, device=DEVICE
) -> Case:
    """Small integers, factors that are powers of two, and NaNs in rows that do not count."""
    groups = len(sizes)
    x, w = integers((groups, max_m, K), dtype, 1, device=device), integers((groups, N, K), dtype, 2, device=device)
    for g, rows in enumerate(sizes):
        x[g, max(rows, 0) :] = float("nan")
    layout = torch.tensor(sizes, dtype=index, device=device)
    if dtype.itemsize > 1:
        return Case(x, w, layout, None, None)
    deep, wide = -(-K // BLOCK), -(-N // BLOCK)
    of_w = {"group": (groups,), "channel": (groups, N), "block": (groups, wide, deep)}[scales]
    of_x = (groups, max_m, deep if scales == "block" else 1)
    x_scale, w_scale = (
        2.0 ** integers(shape, torch.float32, seed, device=device) for seed, shape in ((3, of_x), (4, of_w))
    )
    return Case(x, w, layout, x_scale, w_scale)


def result_for(case: Case, dtype=torch.float32, margin=16):
    """Y full of canaries, and the check that nothing around it was written."""
    shape = (case.XQ.shape[0], case.XQ.shape[1], case.WQ.shape[1])
    return poisoned(shape, dtype, margin, device=case.XQ.device)


__all__ = ["BLOCK", "DEVICE", "FP8", "FP8_FNUZ", "SIZES", "Case", "case", "result_for", "strided_like"]
