"""The cases of AITER's own tests, rebuilt from their description: its shapes (the large ones divided), layouts,
options, and divisions into groups. Values are small integers, so the comparison is exact. ``test_api_gpu`` has the full
sizes."""

from __future__ import annotations

import pytest
import torch

from course_kernels import gmm, runtime
from gmm_cases import (
    TRANSPOSED,
    assert_same,
    columns,
    exact_gmm,
    exact_tgmm,
    integers,
    poisoned,
    random_sizes,
    sizes_of,
)
from gmm_cases import weights as weights_in

# (M, K, N, G): two for tests alone; DeepSeek-V2 16B forward and backward, Mixtral 8x22B up and down; an unknown layer.
SMALL_SHAPES = [(10, 2, 3, 4), (32, 16, 8, 4)]
LARGE_SHAPES = [(192, 22, 32, 64), (3072, 32, 22, 8), (128, 24, 64, 8), (128, 64, 24, 8)]
OTHER = (130, 20, 40, 32)
SEEDS = (0, 1, 2)  # the first division is even


@pytest.mark.parametrize("shape", SMALL_SHAPES + LARGE_SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize("use_bias", [False, True])
def test_gmm(shape, layout, use_bias):
    M, K, N, G = shape
    backend = "triton" if M < 100 else "torch"
    lhs, (rhs, plain) = integers(M, K), weights_in(G, K, N, layout)
    bias = integers(G, N, seed=7) if use_bias else None
    for seed in SEEDS[: 3 if M < 100 else 2]:
        sizes, out = random_sizes(M, G, seed), poisoned(M, N)
        assert gmm(lhs, rhs, sizes_of(*sizes), bias, existing_out=out, backend=backend) is out
        assert_same(out, exact_gmm(lhs, plain, sizes, bias))


@pytest.mark.parametrize("groups", [32, 17])
@pytest.mark.parametrize("layout", ["row", "column", "transposed"])
@pytest.mark.parametrize("grid_dim", [None, 240])
@pytest.mark.parametrize("work_stealing", [False, True])
def test_gmm_int64_sizes_second_layout_programs_and_stealing(groups, layout, grid_dim, work_stealing):
    M, K, N, _ = OTHER
    lhs, (rhs, plain) = integers(M, K), weights_in(groups, K, N, layout)
    sizes, out = random_sizes(M, groups, groups), poisoned(M, N)
    group_sizes = sizes_of(*sizes, dtype=torch.int64)
    gmm(lhs, rhs, group_sizes, existing_out=out, work_stealing=work_stealing, grid_dim=grid_dim, backend="triton")
    assert_same(out, exact_gmm(lhs, plain, sizes))


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("shape", SMALL_SHAPES + LARGE_SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize("with_bias_grad", [False, True])
def test_tgmm(name, shape, layout, with_bias_grad):
    M, K, N, G = shape
    backend = "triton" if M < 100 else "torch"
    (lhs, plain), rhs = columns(K, M, layout), integers(M, N)
    for seed in SEEDS[: 3 if M < 100 else 2]:
        sizes, out = random_sizes(M, G, seed), poisoned(G, K, N)
        sums = poisoned(G, K, dtype=torch.float32) if with_bias_grad else None
        TRANSPOSED[name](
            lhs, rhs, sizes_of(*sizes), sums, existing_out=out, accumulate=False, backend=backend
        )  # fmt: skip
        exact, exact_sums = exact_tgmm(plain, rhs, sizes)
        assert_same(out, exact)  # of empty groups, too, which AITER's comparison leaves out
        if with_bias_grad:
            assert_same(sums, exact_sums)


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("with_bias_grad", [False, True])
def test_tgmm_accumulate(name, with_bias_grad):
    M, K, N, G = SMALL_SHAPES[0]
    (lhs, _), rhs, sizes = columns(K, M), integers(M, N), random_sizes(M, G, 0)
    out = torch.randn(G, K, N, generator=torch.Generator().manual_seed(1)).to(runtime.device(), torch.bfloat16)
    before, sums = out.clone(), torch.zeros(G, K, device=lhs.device) if with_bias_grad else None
    TRANSPOSED[name](lhs, rhs, sizes_of(*sizes), sums, existing_out=out, accumulate=True, backend="triton")
    exact, exact_sums = exact_tgmm(lhs, rhs, sizes)
    assert_same(out, exact + before.double())
    if with_bias_grad:
        assert_same(sums, exact_sums)


@pytest.mark.parametrize(("name", "grid_dim"), [("ptgmm", None), ("ptgmm", 228), ("nptgmm", None)])
@pytest.mark.parametrize("groups", [32, 13])
@pytest.mark.parametrize("layout", ["row", "column", "transposed"])
def test_tgmm_int64_sizes_second_layout_and_programs(name, grid_dim, groups, layout):
    M, K, N, _ = OTHER
    (lhs, plain), rhs = columns(K, M, layout), integers(M, N)
    sizes, out = random_sizes(M, groups, groups), poisoned(groups, K, N)
    options = {} if grid_dim is None else dict(grid_dim=grid_dim)
    TRANSPOSED[name](
        lhs, rhs, sizes_of(*sizes, dtype=torch.int64), existing_out=out, backend="triton", **options
    )  # fmt: skip
    assert_same(out, exact_tgmm(plain, rhs, sizes)[0])
