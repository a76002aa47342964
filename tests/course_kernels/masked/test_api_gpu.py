"""deepgemm on a GPU: real shapes, CUDA graphs whose sizes change, addresses past 2**31, the same bits every time."""

from __future__ import annotations

import pytest
import torch

from course_kernels import deepgemm, shuffle_weight
from course_kernels.masked.shuffle import plain

pytestmark = pytest.mark.gpu
FP8 = torch.float8_e4m3fn


def random_operands(groups, max_m, N, K, dtype, scales="group", seed=0):
    """XQ, WQ, x_scale, w_scale."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, device="cuda", generator=generator)

    x, w = normal(groups, max_m, K).to(dtype), normal(groups, N, K).to(dtype)
    if dtype.itemsize > 1:
        return x, w, None, None
    deep, wide = -(-K // 128), -(-N // 128)
    of_w = {"group": (groups,), "channel": (groups, N), "block": (groups, wide, deep)}[scales]
    return x, w, normal(groups, max_m, deep if scales == "block" else 1).abs() + 0.5, normal(*of_w).abs() + 0.5


def sizes_around(groups, rows, max_m, seed=1):
    generator = torch.Generator().manual_seed(seed)
    sizes = (rows * (0.7 + 0.6 * torch.rand(groups, generator=generator))).int().clamp(max=max_m)
    sizes[0] = 0
    return sizes.cuda()


def check_rows(y, x, w, sizes, x_scale, w_scale):
    """Rows that count against float64, the others against the NaNs that were there."""
    for g, rows in enumerate(sizes.tolist()):
        a, b = x[g, :rows].double(), w[g].double()
        if x_scale is not None:
            a_scale, b_scale = x_scale[g, :rows].double(), w_scale[g].double()
            b_scale = b_scale.reshape(*b_scale.shape, *(1,) * (2 - b_scale.dim()))
            if a_scale.shape[1] > 1:
                a_scale = a_scale.repeat_interleave(128, 1)[:, : a.shape[1]]
                b_scale = b_scale.repeat_interleave(128, 0)[: b.shape[0]].repeat_interleave(128, 1)[:, : b.shape[1]]
            a, b = a * a_scale, b * b_scale
        exact = a @ b.mT
        # 8-bit sums lose up to 2**-13 of a block's largest addends in tensor cores.
        bound = (a.abs() @ b.abs().mT) * (2.0**-11 if x.dtype == FP8 else 2.0**-20)
        error = (y[g, :rows].double() - exact).abs()
        allowed = bound + exact.abs() * 2.0**-8
        assert bool((error <= allowed).all()), f"group {g}: {(error / allowed).max().item():.2f} of the tolerance"
        assert y[g, rows:].isnan().all(), f"rows of group {g} that do not count were written"


@pytest.mark.parametrize(("groups", "rows", "max_m"), [(32, 20, 256), (8, 192, 512), (4, 1024, 2048)], ids=str)
@pytest.mark.parametrize("backend", ["auto", "triton", "cute"])
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "group", "channel", "block"])
def test_real_shapes(kind, backend, groups, rows, max_m):
    if backend == "cute" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    dtype = getattr(torch, kind, FP8)
    x, w, x_scale, w_scale = random_operands(groups, max_m, 1536, 2048, dtype, kind)
    sizes = sizes_around(groups, rows, max_m)
    for index, row in enumerate(sizes.tolist()):
        x[index, row:] = float("nan")
    y = torch.full((groups, max_m, 1536), float("nan"), dtype=torch.bfloat16, device="cuda")
    deepgemm(x, w, y, sizes, x_scale, w_scale, backend=backend, expected_m=rows)
    check_rows(y, x, w, sizes, x_scale, w_scale)
    if backend == "triton":
        shuffled = torch.full_like(y, float("nan"))
        deepgemm(x, shuffle_weight(w), shuffled, sizes, x_scale, w_scale, expected_m=rows)
        check_rows(shuffled, x, w, sizes, x_scale, w_scale)


@pytest.mark.parametrize("kind", ["bfloat16", "group", "block"])
@pytest.mark.parametrize("backend", ["triton", "auto"])
def test_one_graph_for_all_sizes(backend, kind):
    dtype = getattr(torch, kind, FP8)
    for index in (torch.int32, torch.int64):
        x, w, x_scale, w_scale = random_operands(6, 200, 384, 512, dtype, kind)
        sizes = torch.zeros(6, dtype=index, device="cuda")
        y = torch.empty(6, 200, 384, dtype=torch.bfloat16, device="cuda")

        def call(x=x, w=w, y=y, sizes=sizes, x_scale=x_scale, w_scale=w_scale):
            deepgemm(x, w, y, sizes, x_scale, w_scale, backend=backend)

        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        for counts in ((0, 0, 0, 0, 0, 0), (200, 1, 0, 64, 65, 199), (-3, 500, 7, 0, 200, 0)):
            sizes.copy_(torch.tensor(counts))
            y.fill_(float("nan"))
            graph.replay()
            check_rows(y, x, w, sizes.clamp(0, 200), x_scale, w_scale)
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_the_same_bits_every_time_and_from_every_stream():
    x, w, x_scale, w_scale = random_operands(8, 256, 1024, 1024, FP8, "block")
    sizes, stream = sizes_around(8, 100, 256), torch.cuda.Stream()
    results = []
    for i in range(4):
        y = torch.full((8, 256, 1024), -1.0, dtype=torch.bfloat16, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream if i % 2 else torch.cuda.current_stream()):
            deepgemm(x, w, y, sizes, x_scale, w_scale, backend="triton")
        torch.cuda.synchronize()
        results.append(y)
    assert all(torch.equal(y, results[0]) for y in results)


@pytest.mark.parametrize("backend", ["triton", "auto"])
def test_addresses_past_32_bits(backend):
    """The last group of W, and of Y, begins more than 2**31 elements after the first."""
    groups, max_m, N, K = 36, 16, 8192, 8192
    w = torch.zeros(groups, N, K, dtype=torch.bfloat16, device="cuda")
    w[-1] = 1.0
    x = torch.ones(groups, max_m, K, dtype=torch.bfloat16, device="cuda")
    y = torch.full((groups, max_m, N), -1.0, dtype=torch.bfloat16, device="cuda")
    sizes = torch.full((groups,), 3, dtype=torch.int32, device="cuda")
    deepgemm(x, w, y, sizes, backend=backend)
    wanted = torch.zeros(groups, 3, N, device="cuda")
    wanted[-1] = K
    assert torch.equal(y[:, :3].float(), wanted)
    assert bool((y[:, 3:] == -1).all())
    shuffled = shuffle_weight(w[-2:])
    big = torch.empty(2**31 + 2 * N * K, dtype=torch.bfloat16, device="cuda")
    far = big.as_strided((2, N, K), (2**31, K, 1))
    far.copy_(plain(shuffled))
    y.fill_(-1.0)
    deepgemm(x[-2:], far, y[-2:], sizes[-2:], shuffled=True)
    assert torch.equal(y[-2:, :3].float(), wanted[-2:])
