"""gmm, ptgmm and nptgmm on small integers: every layout, dtype and option against a loop in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_kernels import gmm, nptgmm, ptgmm, runtime
from course_kernels.gmm import get_config
from gmm_cases import (
    LHS_LAYOUTS,
    RAGGED,
    RHS_LAYOUTS,
    SMALL,
    TRANSPOSED,
    assert_same,
    columns,
    exact_gmm,
    exact_tgmm,
    integers,
    poisoned,
    sizes_of,
    weights,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
TOTAL = sum(RAGGED)
both = pytest.mark.parametrize("name", TRANSPOSED)
backends = pytest.mark.parametrize("backend", ["triton", "torch"])


def id_of(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


# ---- gmm


@backends
@pytest.mark.parametrize("layout", RHS_LAYOUTS)
def test_gmm_takes_every_layout_of_rhs(layout, backend):
    lhs = integers(TOTAL, 24)
    rhs, plain = weights(4, 24, 18, layout)
    out = gmm(lhs, rhs, sizes_of(*RAGGED), backend=backend, config=SMALL)
    assert (out.dtype, out.is_contiguous()) == (torch.bfloat16, True)
    assert_same(out, exact_gmm(lhs, plain, RAGGED))


@pytest.mark.parametrize("layout", RHS_LAYOUTS)
def test_a_square_rhs_is_what_its_layout_says(layout):
    lhs = integers(TOTAL, 20)
    rhs, plain = weights(4, 20, 20, layout)
    named = {"rhs_layout": "gnk" if layout == "transposed" else "gkn"}
    exact = exact_gmm(lhs, plain, RAGGED)
    assert_same(gmm(lhs, rhs, sizes_of(*RAGGED), **named), exact)
    alone = gmm(lhs, rhs, sizes_of(*RAGGED))
    assert_same(alone, exact if layout != "transposed" else exact_gmm(lhs, rhs, RAGGED))  # "auto" means (G, K, N)


@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
@pytest.mark.parametrize("out_dtype", DTYPES, ids=id_of)
def test_dtypes_bias_and_existing_out(dtype, out_dtype):
    lhs, (rhs, _), bias = (
        integers(TOTAL, 24, dtype=dtype),
        weights(4, 24, 18, dtype=dtype),
        integers(4, 18, dtype=dtype),
    )
    out = poisoned(TOTAL, 18, dtype=out_dtype)
    found = gmm(lhs, rhs, sizes_of(*RAGGED), bias, out_dtype, out, config=SMALL, backend="triton")
    assert found is out
    assert_same(out, exact_gmm(lhs, rhs, RAGGED, bias))


def test_the_default_is_bfloat16_whatever_the_operands_are():
    lhs, (rhs, _) = integers(TOTAL, 24, dtype=torch.float16), weights(4, 24, 18, dtype=torch.float16)
    assert gmm(lhs, rhs, sizes_of(*RAGGED)).dtype == torch.bfloat16
    assert ptgmm(lhs.mT, integers(TOTAL, 3, dtype=torch.float16), sizes_of(*RAGGED)).dtype == torch.bfloat16


@backends
def test_rows_after_the_last_group_are_zero_and_not_read(backend):
    lhs, (rhs, _) = integers(TOTAL + 9, 24), weights(4, 24, 18)
    lhs[TOTAL:] = torch.nan
    out = poisoned(2 * (TOTAL + 9), 18)[::2]  # with gaps
    gmm(lhs, rhs, sizes_of(*RAGGED), existing_out=out, backend=backend, config=SMALL)
    assert_same(out, exact_gmm(lhs.nan_to_num(), rhs, RAGGED))


@pytest.mark.parametrize("options", [
    dict(work_stealing=True), dict(grid_dim=1), dict(grid_dim=3), dict(work_stealing=True, grid_dim=2),
    dict(config=dict(BLOCK_SIZE_M=16, BLOCK_SIZE_K=32, BLOCK_SIZE_N=16, GROUP_SIZE=1, GRID_DIM=5)),
    dict(config=dict(BLOCK_SIZE_M=16, BLOCK_SIZE_K=16, BLOCK_SIZE_N=16, GROUP_SIZE=4, GRID_DIM=7, NUM_XCDS=2)),
    dict(config=dict(BLOCK_SIZE_M=16, BLOCK_SIZE_K=16, BLOCK_SIZE_N=16, GROUP_SIZE=2, NUM_XCDS=8), grid_dim=11),
    dict(config=dataclasses.replace(SMALL, programs=64, num_xcds=8)),
    dict(config=dataclasses.replace(SMALL, num_xcds=8), work_stealing=True),
], ids=str)  # fmt: skip
def test_a_launch_changes_no_value(options):
    lhs, (rhs, _) = integers(TOTAL + 5, 24), weights(4, 24, 50)
    out = poisoned(TOTAL + 5, 50)
    gmm(lhs, rhs, sizes_of(*RAGGED), existing_out=out, backend="triton", **options)
    assert_same(out, exact_gmm(lhs, rhs, RAGGED))


@pytest.mark.parametrize("extents", [(0, 8, 5, 2), (6, 0, 5, 2), (6, 8, 0, 2), (6, 8, 5, 0)], ids=str)
@backends
def test_extents_of_zero(extents, backend):
    M, K, N, G = extents
    sizes = (M // 2,) * G
    lhs, (rhs, _), bias = integers(M, K), weights(G, K, N), integers(G, N)
    assert_same(gmm(lhs, rhs, sizes_of(*sizes), bias, backend=backend), exact_gmm(lhs, rhs, sizes, bias))
    right, sums = integers(M, N), torch.full((G, K), torch.nan, device=lhs.device)
    exact, exact_sums = exact_tgmm(lhs.mT, right, sizes)
    assert_same(ptgmm(lhs.mT, right, sizes_of(*sizes), sums, lhs_layout="km", backend=backend), exact)
    assert_same(sums, exact_sums)


# ---- ptgmm and nptgmm


@both
@backends
@pytest.mark.parametrize("layout", LHS_LAYOUTS)
def test_tgmm_takes_every_layout_of_lhs(name, layout, backend):
    lhs, plain = columns(20, TOTAL, layout)
    rhs, sums = integers(TOTAL, 36), poisoned(4, 20, dtype=torch.float32)
    out = poisoned(4, 20, 36, dtype=torch.float16)
    found = TRANSPOSED[name](
        lhs, rhs, sizes_of(*RAGGED), sums, torch.float16, out, config=SMALL, backend=backend
    )  # fmt: skip
    assert found is out
    exact, exact_sums = exact_tgmm(plain, rhs, RAGGED)
    assert_same(out, exact)
    assert_same(sums, exact_sums)


@both
@pytest.mark.parametrize("layout", LHS_LAYOUTS)
def test_a_square_lhs_is_what_its_layout_says(name, layout):
    sizes = (5, 0, 15)
    lhs, plain = columns(20, 20, layout)
    rhs = integers(20, 18)
    named = {"lhs_layout": "mk" if layout == "transposed" else "km"}
    exact, exact_sums = exact_tgmm(plain, rhs, sizes)
    sums = poisoned(3, 20, dtype=torch.float32)
    assert_same(TRANSPOSED[name](lhs, rhs, sizes_of(*sizes), sums, **named), exact)
    assert_same(sums, exact_sums)
    with pytest.raises(ValueError, match=r"lhs_layout must be 'km' or 'mk' where K equals M, got 'auto' with .*20, 20"):
        TRANSPOSED[name](lhs, rhs, sizes_of(*sizes))


@both
@backends
@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
def test_accumulate_adds_and_leaves_empty_groups(name, backend, dtype):
    (lhs, _), rhs = columns(20, TOTAL), integers(TOTAL, 18)
    before, sums_before = integers(4, 20, 18, dtype=dtype, seed=5), integers(4, 20, dtype=torch.float32, seed=6)
    before[1, 0, 0] = sums_before[1, 0] = torch.nan  # of the empty group: not even read
    out, sums = before.clone(), sums_before.clone()
    TRANSPOSED[name](lhs, rhs, sizes_of(*RAGGED), sums, dtype, out, True, SMALL, backend=backend)
    exact, exact_sums = exact_tgmm(lhs, rhs, RAGGED)
    used = [0, 2, 3]
    assert_same(out[used], exact[used] + before[used].double())
    assert_same(sums[used], exact_sums[used] + sums_before[used].double())
    for kept, was in ((out[1], before[1]), (sums[1], sums_before[1])):
        assert torch.equal(kept.view(torch.uint8), was.view(torch.uint8))


@both
@backends
@pytest.mark.parametrize(("dtype", "factors", "once"), [
    (torch.bfloat16, (16, 16), 258), (torch.float16, (64, 32), 2050), (torch.float32, (64, 32), 2050),
], ids=str)  # fmt: skip
def test_accumulate_rounds_once(name, backend, dtype, factors, once):
    """The product is one more than a power of two, to which 16 bits round it; then the sum with 1 is rounded to it."""
    lhs, rhs = (torch.tensor([[factor, 1.0]], device=runtime.device()).to(torch.bfloat16) for factor in factors)
    out = torch.ones(1, 1, 1, dtype=dtype, device=runtime.device())
    TRANSPOSED[name](lhs, rhs.mT, sizes_of(2), None, dtype, out, True, SMALL, backend=backend)
    assert out.item() == once
    if dtype != torch.float32:
        twice = torch.tensor(once - 1.0).to(dtype) + torch.ones((), dtype=dtype)
        assert twice.item() == once - 2


@both
def test_one_program_or_one_for_each_tile_give_the_same_bits(name):
    generator = torch.Generator().manual_seed(3)
    lhs = torch.randn(20, TOTAL, generator=generator).to(runtime.device(), torch.float16)
    rhs = torch.randn(TOTAL, 36, generator=generator).to(runtime.device(), torch.float16)
    first = ptgmm(lhs, rhs, sizes_of(*RAGGED), config=SMALL, grid_dim=1, backend="triton")
    for num_xcds in (1, 8):
        out = poisoned(4, 20, 36)
        config = dataclasses.replace(SMALL, num_xcds=num_xcds)
        TRANSPOSED[name](lhs, rhs, sizes_of(*RAGGED), existing_out=out, config=config, backend="triton")
        assert torch.equal(out, first)


@pytest.mark.parametrize("grid_dim", [2, 7, 100])
def test_a_number_of_programs_changes_no_value(grid_dim):
    (lhs, _), rhs = columns(40, TOTAL), integers(TOTAL, 36)
    config = dict(BLOCK_SIZE_M=16, BLOCK_SIZE_K=16, BLOCK_SIZE_N=16, GROUP_SIZE=2, GRID_DIM=4, NUM_XCDS=4)
    found = ptgmm(lhs, rhs, sizes_of(*RAGGED), config=config, grid_dim=grid_dim, backend="triton")
    assert_same(found, exact_tgmm(lhs, rhs, RAGGED)[0])


@both
def test_what_follows_the_last_group_is_not_read(name):
    (lhs, plain), rhs = columns(20, TOTAL + 3), integers(TOTAL + 3, 18)
    lhs[:, TOTAL:] = rhs[TOTAL:] = torch.nan
    sums = poisoned(4, 20, dtype=torch.float32)
    found = TRANSPOSED[name](lhs, rhs, sizes_of(*RAGGED), sums, config=SMALL, backend="triton")
    exact, exact_sums = exact_tgmm(plain[:, :TOTAL], rhs[:TOTAL], RAGGED)
    assert_same(found, exact)
    assert_same(sums, exact_sums)


def test_what_get_config_returns_is_what_runs_without_it():
    lhs, (rhs, _) = integers(TOTAL, 40), weights(4, 40, 36)
    config = get_config("gmm", TOTAL, 40, 36, 4)
    plain = gmm(lhs, rhs, sizes_of(*RAGGED), backend="triton")
    assert torch.equal(gmm(lhs, rhs, sizes_of(*RAGGED), config=config, backend="triton"), plain)
    right = integers(TOTAL, 36)
    for name, function in TRANSPOSED.items():
        config = get_config(name, TOTAL, 40, 36, 4)
        plain = function(lhs, right, sizes_of(*RAGGED), backend="triton")
        assert torch.equal(function(lhs, right, sizes_of(*RAGGED), config=config, backend="triton"), plain)


# ---- drawn


@settings(max_examples=10, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    K=st.integers(1, 33), N=st.integers(1, 33), tail=st.integers(0, 3),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    layout=st.sampled_from(RHS_LAYOUTS), wide=st.booleans(), with_bias=st.booleans(), dynamic=st.booleans(),
    backend=st.sampled_from(["triton", "torch"]),
)  # fmt: skip
def test_gmm_of_anything(sizes, K, N, tail, dtypes, layout, wide, with_bias, dynamic, backend):
    dtype, out_dtype = dtypes
    M = sum(sizes) + tail
    lhs, bias = integers(M, K, dtype=dtype), integers(len(sizes), N, dtype=dtype) if with_bias else None
    rhs, plain = weights(len(sizes), K, N, layout, dtype=dtype)
    group_sizes = sizes_of(*sizes, dtype=torch.int64 if wide else torch.int32)
    named = "gnk" if layout == "transposed" else "gkn"
    found = gmm(
        lhs, rhs, group_sizes, bias, out_dtype, work_stealing=dynamic, config=SMALL, rhs_layout=named,
        check=not tail, backend=backend,
    )  # fmt: skip
    assert found.dtype == out_dtype
    assert_same(found, exact_gmm(lhs, plain, sizes, bias))


@settings(max_examples=10, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    K=st.integers(1, 33), N=st.integers(1, 33),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    layout=st.sampled_from(LHS_LAYOUTS), wide=st.booleans(), accumulate=st.booleans(),
    function=st.sampled_from([ptgmm, nptgmm]), num_xcds=st.sampled_from([1, 3, 8]),
    backend=st.sampled_from(["triton", "torch"]),
)  # fmt: skip
def test_tgmm_of_anything(sizes, K, N, dtypes, layout, wide, accumulate, function, num_xcds, backend):
    dtype, out_dtype = dtypes
    M = sum(sizes)
    (lhs, plain), rhs = columns(K, M, layout, dtype=dtype), integers(M, N, dtype=dtype)
    group_sizes = sizes_of(*sizes, dtype=torch.int64 if wide else torch.int32)
    out = integers(len(sizes), K, N, dtype=out_dtype, seed=5)
    sums = integers(len(sizes), K, dtype=torch.float32, seed=6)
    exact, exact_sums = exact_tgmm(plain, rhs, sizes)
    if accumulate:
        exact, exact_sums = exact + out.double(), exact_sums + sums.double()
    named = "mk" if layout == "transposed" else "km"
    function(
        lhs, rhs, group_sizes, sums, out_dtype, out, accumulate, dataclasses.replace(SMALL, num_xcds=num_xcds),
        lhs_layout=named, check=True, backend=backend,
    )  # fmt: skip
    assert_same(out, exact)
    assert_same(sums, exact_sums)
