"""bfloat16 operands on the CPU reach a launch as float32, and nothing else changes."""

from __future__ import annotations

import torch

from course_kernels.jagged.interpreting import widened_on_cpu


@widened_on_cpu
def multiply(kernel, A_packed, B, offsets, config=None):
    seen.append((kernel, A_packed.dtype, B.dtype, offsets.dtype, config))
    return A_packed.to(torch.promote_types(A_packed.dtype, B.dtype)) @ B.to(
        torch.promote_types(A_packed.dtype, B.dtype)
    )


seen = []


def test_bfloat16_alone_is_widened():
    offsets = torch.tensor([0, 2])
    for a, b, launched, result in (
        (torch.bfloat16, torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.float32, torch.float32),
        (torch.float32, torch.float32, torch.float32, torch.float32),
        (torch.float16, torch.float16, torch.float16, torch.float16),
    ):
        seen.clear()
        product = multiply("k", torch.ones(2, 3, dtype=a), torch.ones(3, 4, dtype=b), offsets, config=5)
        assert seen == [("k", launched, launched, torch.int64, 5)]
        assert product.dtype == result
