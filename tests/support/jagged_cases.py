"""Operands of the jagged products for tests: whole numbers in memory that ends in NaN, and results in such memory."""

from __future__ import annotations

import contextlib
import importlib.util

import pytest
import torch

from course_kernels import grouped_gemm_jagged, grouped_gemm_jagged_persistent, runtime
from course_kernels.testing import integers, poisoned, strided_like

DEVICE = runtime.device()
FUNCTIONS = {"simple": grouped_gemm_jagged, "persistent": grouped_gemm_jagged_persistent}
needs_helion = pytest.mark.skipif(importlib.util.find_spec("helion") is None, reason="helion is not installed")
IMPLEMENTATIONS = ["auto", "triton", pytest.param("helion", marks=needs_helion)]
# Empty groups at both ends and between, one row, whole blocks and boundary tiles; extents that no block divides.
SIZES = (0, 70, 0, 33, 1, 32, 0)


def offsets_of(sizes, dtype=torch.int32):
    return torch.tensor([0, *sizes], device=DEVICE).cumsum(0).to(dtype)


def operands(sizes=SIZES, K=40, N=37, dtype=torch.float32, b_dtype=None, tail=0, how=("row", "row"), index=torch.int32):
    """A_packed, B and offsets; the product's sums are exact in every dtype."""
    shapes, dtypes = ((sum(sizes) + tail, K), (K, N)), (dtype, b_dtype or dtype)
    made = []
    for seed, (shape, each, layout) in enumerate(zip(shapes, dtypes, how)):
        values = integers(shape, each, seed, low=-1, high=1, device=DEVICE)
        view = (
            poisoned(shape, each, device=DEVICE)[0].copy_(values) if layout == "row" else strided_like(values, layout)
        )
        made.append(view)
    return *made, offsets_of(sizes, index)


def expected(A_packed, B, rows):
    """The exact product of the first rows, zeros below, in the promoted dtype."""
    product = A_packed.double() @ B.double()
    product[rows:] = 0
    return product.to(torch.promote_types(A_packed.dtype, B.dtype))


@contextlib.contextmanager
def guarded_results(monkeypatch, shape):
    """What ``torch.empty(M, N, ...)`` allocates for a result is memory full of canaries; checked at the end."""
    empty, checks = torch.empty, []

    def guarded(*size, dtype=None, device=None, **options):
        if size != shape:
            return empty(*size, dtype=dtype, device=device, **options)
        view, verify = poisoned(shape, dtype, device=device)
        checks.append(verify)
        return view

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", guarded)
        yield
    assert checks, "no result of this shape was allocated"
    for verify in checks:
        verify(all_written=True)
