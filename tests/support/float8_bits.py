"""Float8 values and their factors, bit for bit."""

from __future__ import annotations

import torch


def same(found, wanted):
    """Shapes, strides and bits; any NaN for a NaN."""
    for each, want in zip(found, wanted, strict=True):
        assert (each.shape, each.dtype, each.stride()) == (want.shape, want.dtype, want.stride())
        assert torch.equal(each.isnan(), want.isnan())
        bits, wanted_bits = (
            (t.view(torch.uint8) if t.element_size() == 1 else t.view(torch.int32)).where(~want.isnan(), 0)
            for t in (each, want)
        )
        assert torch.equal(bits, wanted_bits)
