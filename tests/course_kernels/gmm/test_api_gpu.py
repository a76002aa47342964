"""gmm, ptgmm and nptgmm on a GPU: AITER's shapes at full scale, CUDA graphs, no waiting, Inductor."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch

from course_kernels import GemmConfig, gmm, nptgmm, ptgmm, runtime
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
    random_sizes,
    sizes_of,
    weights,
)

pytestmark = pytest.mark.gpu
# (M, K, N, G) of AITER's tests: DeepSeek-V2 16B forward, and with all rows of a large batch; Mixtral 8x22B.
SHAPES = [(49152, 1408, 2048, 64), (32768, 6144, 16384, 8), (32768, 16384, 6144, 8)]
ROWS = 3145728
OTHER = (267424, 1280, 2560, 32)
# As in AITER's tables for MI300, but for the last, which is AITER's example.
AITER_CONFIGS = [
    dict(BLOCK_SIZE_M=256, BLOCK_SIZE_K=64, BLOCK_SIZE_N=256, GROUP_SIZE=1, GRID_DIM=304, num_warps=8, num_stages=1),
    dict(BLOCK_SIZE_M=128, BLOCK_SIZE_K=64, BLOCK_SIZE_N=64, GROUP_SIZE=8, GRID_DIM=256),
]


def parts(sizes):
    start = 0
    for size in sizes:
        yield slice(start, start + size)
        start += size


def check_gmm(out, lhs, plain, sizes, bias=None):
    """Group by group, since all in float64 would not fit. Sums of so small integers are exact in float32."""
    for g, part in enumerate(parts(sizes)):
        exact = lhs[part].double() @ plain[g].double()
        assert_same(out[part], exact if bias is None else exact + bias[g].double())


def check_tgmm(out, plain, rhs, sizes, sums=None):
    for g, part in enumerate(parts(sizes)):
        assert_same(out[g], plain[:, part].double() @ rhs[part].double())
        if sums is not None:
            assert_same(sums[g], plain[:, part].double().sum(1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("backend", ["auto", "triton"])
@pytest.mark.parametrize("use_bias", [False, True])
def test_gmm_at_full_scale(shape, backend, use_bias):
    M, K, N, G = shape
    lhs, bias = integers(M, K), integers(G, N, seed=7) if use_bias else None
    for layout, seed in (("row", 0), ("transposed", 1)):
        (rhs, plain), sizes, out = weights(G, K, N, layout), random_sizes(M, G, seed), poisoned(M, N)
        gmm(lhs, rhs, sizes_of(*sizes), bias, existing_out=out, backend=backend)
        check_gmm(out, lhs, plain, sizes, bias)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", TRANSPOSED)
def test_tgmm_at_full_scale(shape, name):
    M, K, N, G = shape
    rhs = integers(M, N)
    for layout, seed in (("row", 0), ("transposed", 1)):
        (lhs, plain), sizes = columns(K, M, layout), random_sizes(M, G, seed)
        out, sums = poisoned(G, K, N), poisoned(G, K, dtype=torch.float32)
        TRANSPOSED[name](lhs, rhs, sizes_of(*sizes), sums, existing_out=out)
        check_tgmm(out, plain, rhs, sizes, sums)


def wait_for_memory(bytes_, seconds=120):
    """Wait until other workers have left so much of the GPU's memory."""
    torch.cuda.empty_cache()
    end = time.monotonic() + seconds
    while (free := torch.cuda.mem_get_info()[0]) < bytes_:
        assert time.monotonic() < end, f"{free / 1e9:.0f} GB are free, and it needs {bytes_ / 1e9:.0f}"
        time.sleep(0.5)


@pytest.mark.parametrize("backend", ["auto", "triton"])
@pytest.mark.parametrize("extents", [(64, 48), (2048, 1408)], ids=str)
def test_three_million_rows(extents, backend):
    (K, N), G = extents, 8
    if K > 64:
        if torch.cuda.mem_get_info()[1] < 100e9:
            pytest.skip("its operands take 22 GB, and the comparison as much again")
        wait_for_memory(50e9)
    lhs, (rhs, plain), sizes = integers(ROWS, K), weights(G, K, N), random_sizes(ROWS, G, 1)
    out = gmm(lhs, rhs, sizes_of(*sizes), check=True, backend=backend)
    check_gmm(out, lhs, plain, sizes)
    for function in (ptgmm, nptgmm):  # sums of 3 million products of small integers are exact in float32
        sums = poisoned(G, K, dtype=torch.float32)
        found = function(lhs, out, sizes_of(*sizes), sums, torch.float32, lhs_layout="mk", backend=backend)
        if K == 64:
            for g, part in enumerate(parts(sizes)):
                exact = lhs[part].double().mT @ out[part].double()
                assert (found[g] - exact).abs().max() <= 1e-5 * exact.abs().max()
        assert torch.equal(sums[3], lhs[sum(sizes[:3]) : sum(sizes[:4])].double().sum(0).float())


@pytest.mark.parametrize("groups", [32, 17])
@pytest.mark.parametrize("layout", RHS_LAYOUTS)
@pytest.mark.parametrize("options", [
    {}, dict(grid_dim=240), dict(work_stealing=True), dict(grid_dim=100, work_stealing=True),
], ids=str)  # fmt: skip
def test_int64_sizes_programs_and_stealing_at_full_scale(groups, layout, options):
    M, K, N, _ = OTHER
    lhs, (rhs, plain), sizes = integers(M, K), weights(groups, K, N, layout), random_sizes(M, groups, groups)
    out = poisoned(M, N)
    gmm(lhs, rhs, sizes_of(*sizes, dtype=torch.int64), existing_out=out, **options)
    check_gmm(out, lhs, plain, sizes)


@pytest.mark.parametrize("layout", LHS_LAYOUTS)
@pytest.mark.parametrize(("name", "options"), [("ptgmm", {}), ("ptgmm", dict(grid_dim=228)), ("nptgmm", {})])
def test_tgmm_with_int64_sizes_and_programs_at_full_scale(name, options, layout):
    M, K, N, _ = OTHER
    (lhs, plain), rhs, sizes = columns(K, M, layout), integers(M, N), random_sizes(M, 13, 13)
    out = poisoned(13, K, N)
    TRANSPOSED[name](lhs, rhs, sizes_of(*sizes, dtype=torch.int64), existing_out=out, **options)
    check_tgmm(out, plain, rhs, sizes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("backend", ["auto", "triton"])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_accumulate(name, backend, dtype):
    sizes = (300, 0, 1000, 17)
    (lhs, plain), rhs = columns(256, sum(sizes)), integers(sum(sizes), 512)
    out, sums = integers(4, 256, 512, dtype=dtype, seed=5), integers(4, 256, dtype=torch.float32, seed=6)
    exact, exact_sums = exact_tgmm(plain, rhs, sizes)
    exact, exact_sums = exact + out.double(), exact_sums + sums.double()
    TRANSPOSED[name](lhs, rhs, sizes_of(*sizes), sums, dtype, out, True, backend=backend)
    assert_same(out, exact)
    assert_same(sums, exact_sums)


@pytest.mark.parametrize("config", [
    *AITER_CONFIGS, dataclasses.replace(SMALL, num_xcds=8), GemmConfig(128, 128, 64, num_xcds=8, programs=100),
], ids=str)  # fmt: skip
def test_configurations_of_aiter_and_chiplets(config):
    sizes = (500, 0, 900, 33)
    lhs, (rhs, plain) = integers(sum(sizes), 320), weights(4, 320, 520)
    out = poisoned(sum(sizes), 520)
    gmm(lhs, rhs, sizes_of(*sizes), existing_out=out, config=config)
    assert_same(out, exact_gmm(lhs, plain, sizes))
    right, exact = integers(sum(sizes), 520), None
    for name, function in TRANSPOSED.items():
        given = config
        if isinstance(config, dict):  # as AITER's tables for the transposed functions: M is the depth
            given = config | dict(BLOCK_SIZE_M=64, BLOCK_SIZE_K=128, BLOCK_SIZE_N=128)
            if name == "nptgmm":
                given.pop("GRID_DIM")
        elif name == "nptgmm":
            given = dataclasses.replace(config, programs=None)
        out = poisoned(4, 320, 520)
        function(lhs, right, sizes_of(*sizes), existing_out=out, config=given)
        exact = exact_tgmm(lhs.mT, right, sizes)[0] if exact is None else exact
        assert_same(out, exact)


@pytest.mark.parametrize("function", [gmm, ptgmm, nptgmm], ids=lambda function: function.__name__)
def test_what_get_config_returns_runs(function):
    name, sizes = function.__name__, random_sizes(4096, 8, 1)
    config = get_config(name, 4096, 512, 768, 8)
    if name != "nptgmm":
        assert config["GRID_DIM"] % runtime.num_sms() == 0
    lhs, (rhs, plain) = integers(4096, 512), weights(8, 512, 768)
    if function is gmm:
        check_gmm(gmm(lhs, rhs, sizes_of(*sizes), config=config), lhs, plain, sizes)
    else:
        right = integers(4096, 768)
        check_tgmm(function(lhs, right, sizes_of(*sizes), config=config), lhs.mT, right, sizes)


@pytest.mark.parametrize("options", [{}, dict(work_stealing=True), dict(grid_dim=64)], ids=str)
def test_graphs_see_other_sizes_and_nothing_waits(options):
    lhs, (rhs, plain), sums = integers(512, 256), weights(8, 256, 384), poisoned(8, 256, dtype=torch.float32)
    right, sizes, bias = integers(512, 384), sizes_of(*random_sizes(512, 8, 0)), integers(8, 384, seed=7)
    out, gradient = poisoned(512, 384), poisoned(8, 256, 384)

    def step():
        gmm(lhs, rhs, sizes, bias, existing_out=out, **options)
        ptgmm(lhs, right, sizes, sums, existing_out=gradient)
        nptgmm(lhs, right, sizes, sums, existing_out=gradient)

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for seed in (1, 2):
        drawn = random_sizes(512, 8, seed)
        sizes.copy_(sizes_of(*drawn))
        for tensor in (out, gradient, sums):
            tensor.fill_(torch.nan)
        graph.replay()
        graph.replay()  # the counter of work stealing is ready again
        check_gmm(out, lhs, plain, drawn, bias)
        check_tgmm(gradient, lhs.mT, right, drawn, sums)


def test_inductor_compiles_a_layer_with_its_backward():
    lhs, (rhs, plain), bias = integers(256, 128), weights(4, 128, 192), integers(4, 192, seed=7)
    sizes = sizes_of(100, 0, 28, 128)

    @torch.compile(fullgraph=True)
    def layer(lhs, rhs, bias):
        return gmm(lhs, rhs, sizes, bias, torch.float32).relu()

    leaves = [t.clone().requires_grad_() for t in (lhs, rhs, bias)]
    out = layer(*leaves)
    assert_same(out, exact_gmm(lhs, plain, sizes.tolist(), bias).relu())
    out.sum().backward()
    same = [t.clone().requires_grad_() for t in (lhs, rhs, bias)]
    gmm(*same[:2], sizes, same[2], torch.float32).relu().sum().backward()
    for found, wanted in zip(leaves, same):
        assert torch.equal(found.grad, wanted.grad)


def test_arguments_for_the_triton_kernels_choose_them():
    lhs, (rhs, _) = integers(4096, 512), weights(8, 512, 768)
    sizes = sizes_of(*random_sizes(4096, 8, 0))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for options in (dict(grid_dim=50), dict(work_stealing=True), dict(config=GemmConfig(128, 128, 64))):
            gmm(lhs, rhs, sizes, **options)
        nptgmm(lhs, integers(4096, 768), sizes)
        torch.cuda.synchronize()
    names = [event.key for event in profile.key_averages()]
    assert any("contiguous_kernel" in name for name in names)
    assert any("transposed_kernel" in name for name in names)


def test_ragged_groups_of_odd_extents():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        lhs, (rhs, plain) = integers(sum(RAGGED), 27, dtype=dtype), weights(4, 27, 35, dtype=dtype)
        for config in (None, SMALL, dataclasses.replace(SMALL, num_xcds=8)):
            out = poisoned(sum(RAGGED), 35, dtype=torch.float32)
            gmm(lhs, rhs, sizes_of(*RAGGED), None, torch.float32, out, config=config, backend="triton")
            assert_same(out, exact_gmm(lhs, plain, RAGGED))
