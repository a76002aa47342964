"""torch's loop: float32 sums, block scales in two levels, and no autocast."""

from __future__ import annotations

import torch

from course_kernels import deepgemm
from masked_operands import FP8


def test_sums_are_float32_and_scales_apply_to_blocks():
    generator = torch.Generator().manual_seed(5)
    x, w = (torch.randn(2, lines, 300, generator=generator).to(FP8) for lines in (9, 140))
    x_scale, w_scale = torch.rand(2, 9, 3, generator=generator) + 0.5, torch.rand(2, 2, 3, generator=generator) + 0.5
    y = torch.zeros(2, 9, 140)
    with torch.autocast("cpu", torch.bfloat16):
        deepgemm(x, w, y, torch.tensor([9, 4]), x_scale, w_scale)

    def wide(scale, lines):
        return scale.double().repeat_interleave(lines, 1).repeat_interleave(128, 2)

    exact = (x.double() * wide(x_scale, 1)[..., :300]) @ (w.double() * wide(w_scale, 128)[:, :140, :300]).mT
    exact[1, 4:] = 0
    assert (y - exact).abs().max() < 300 * 2**-23 * exact.abs().max()
