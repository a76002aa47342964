"""The dynamic order on Hopper: the results are those of the fixed order bit for bit, however often, in graphs, and on
two streams at a time. ``test_dynamic_order`` looks at the source without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Product
from course_kernels.kernels.cute_sm90.config import CONFIGS, CONFIGS_ALONG_K, CuteConfig
from course_kernels.kernels.cute_sm90.form import Form
from hopper_gpu import hopper_gpu

pytestmark = pytest.mark.gpu
DYNAMIC = [config for config in CONFIGS_ALONG_K if config.dynamic]
ALONE = [replace(config, cluster=1) for config in DYNAMIC]
ALONG_M = [*(config for config in CONFIGS if config.dynamic), replace(CONFIGS[-1], dynamic=True)]
# Depths, or rows, that differ by a thousand times, empty groups among them; more groups than a warp has lanes.
UNEQUAL = (0, 4000, 1, 0, 7, 64, 2000, 65, *(i % 5 * 40 for i in range(40)), 0, 1500, 3, 0)
SIZES = {
    "unequal": UNEQUAL,
    "shallow": tuple(i * 7 % 20 for i in range(60)),
    "all empty": (0,) * 40,
    "one": (0, 0, 300, 0),
    "the deepest last": (1,) * 50 + (9000,),
}


@pytest.fixture
def device():
    return hopper_gpu()


def name_of(config: CuteConfig) -> str:
    return config.name


class Case:
    """Operands of a product of normal numbers, and its result in a fixed order."""

    def __init__(self, along: str, sizes, M: int, N: int, seed: int, device, out_dtype=torch.bfloat16):
        self.form = Form(along, "n" if along == "k" else "k")
        self.out_dtype = out_dtype
        total, K = sum(sizes) + 61, 136
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator, device=device).bfloat16()

        offs = torch.tensor(sizes, device=device).cumsum(0).int()
        if along == "k":
            self.operands = Product.packed(normal(total, M).mT, normal(total, N), offs)
            self.shape = len(sizes), M, N
        else:
            self.operands = Product.packed(normal(total, K), normal(len(sizes), N, K).mT, offs)
            self.shape = total, N

    def out(self) -> torch.Tensor:
        return torch.full(self.shape, float("nan"), dtype=self.out_dtype, device=self.operands.offs.device)

    def compute(self, config: CuteConfig, out: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
        form = self.form._replace(epilogue="add" if accumulate else "store")
        cute.multiply(self.operands, out, form, config)
        return out

    def fixed(self, config: CuteConfig) -> torch.Tensor:
        return self.compute(replace(config, dynamic=False), self.out())


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("config", [*DYNAMIC, *ALONE], ids=name_of)
def test_along_k_the_same_as_in_a_fixed_order(device, config, sizes):
    """With one tile, fewer than clusters, and many more, the last of them partly outside."""
    for M, N in ((8, 8), (712, 1096)):
        product = Case("k", sizes, M, N, seed=M, device=device)
        expected = product.fixed(config)
        assert expected.isfinite().all()
        for _ in range(5):
            assert torch.equal(product.compute(config, product.out()), expected)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("config", ALONG_M, ids=name_of)
def test_along_m_the_same_as_in_a_fixed_order(device, config, sizes):
    product = Case("m", sizes, 0, 1096, seed=1, device=device)
    expected = product.fixed(config)
    assert expected.isfinite().all()
    for _ in range(5):
        assert torch.equal(product.compute(config, product.out()), expected)


@pytest.mark.parametrize("config", [*DYNAMIC, ALONE[1]], ids=name_of)
def test_added_to_a_result(device, config):
    product = Case("k", UNEQUAL, 392, 520, seed=2, device=device, out_dtype=torch.float32)
    held = torch.randn(product.shape, device=device)
    expected = product.compute(replace(config, dynamic=False), held.clone(), accumulate=True)
    for _ in range(5):
        assert torch.equal(product.compute(config, held.clone(), accumulate=True), expected)


@pytest.mark.parametrize("config", DYNAMIC, ids=name_of)
def test_a_graph_replayed_many_times(device, config):
    """Two products in a graph, with other ends in every replay; and launches outside of it in between."""
    product = Case("k", UNEQUAL, 712, 1096, seed=3, device=device)
    offs = product.operands.offs
    outs = product.out(), product.out()
    product.compute(config, outs[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in outs:
            product.compute(config, out)
    ends = offs.clone()
    for shift in (0, 0, 1, 700, 10**6, 0):
        offs.copy_((ends - shift).clamp(min=0))
        expected = product.fixed(config)
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        graph.replay()
        other = product.compute(config, product.out())
        assert all(torch.equal(each, expected) for each in (*outs, other))


@pytest.mark.parametrize("config", DYNAMIC, ids=name_of)
def test_two_streams_at_once(device, config):
    """Kernels of few clusters each, which run at the same time; and graphs of them."""
    products = [Case("k", UNEQUAL, 392, 520, seed, device) for seed in (4, 5)]
    expected = [product.fixed(config) for product in products]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    graphs, inside = [], []
    for product in products:
        inside.append(product.compute(config, product.out()))
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            product.compute(config, inside[-1])
    outs = [[], []]
    torch.cuda.synchronize()
    for _ in range(20):
        for product, stream, graph, found in zip(products, streams, graphs, outs):
            with torch.cuda.stream(stream):
                found.append(product.compute(config, product.out()))
                graph.replay()
    torch.cuda.synchronize()
    for found, replayed, right in zip(outs, inside, expected):
        assert all(torch.equal(out, right) for out in (*found, replayed))


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("config", DYNAMIC, ids=name_of)
def test_few_clusters_beside_one_another(device, config, cluster):
    """Of a third of the GPU each, so that two of them really run at the same time. One compiled kernel serves both
    numbers of SMs."""
    config = replace(config, cluster=cluster)
    function = cute.compiled(config, Form("k", "n"), torch.bfloat16, torch.bfloat16, device)
    products = [Case("k", UNEQUAL, 712, 1096, seed, device) for seed in (6, 7)]
    counters = torch.zeros(2, dtype=torch.float64, device=device).split(1)
    expected = [product.fixed(config) for product in products]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    outs = [[], []]
    torch.cuda.synchronize()
    for _ in range(10):
        for product, stream, found, counter in zip(products, streams, outs, counters):
            with torch.cuda.stream(stream):
                a, b, offs = product.operands.a, product.operands.b, product.operands.offs
                found.append(product.out())
                function(a, b, found[-1], offs, 44 // cluster, None, None, counter)
    torch.cuda.synchronize()
    assert [counter.item() for counter in counters] == [0.0, 0.0]
    for found, right in zip(outs, expected):
        assert all(torch.equal(out, right) for out in found)
