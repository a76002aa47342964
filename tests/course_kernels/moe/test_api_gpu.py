"""What only a GPU can show of the layer: real sizes, no host sync, one graph for all routings, memory."""

from __future__ import annotations

import contextlib

import pytest
import torch

from course_kernels.engine.hopper import cute
from course_kernels.moe import Routing, layer, routing
from cute_calls import cute_alone
from hopper_gpu import hopper_gpu
from moe_layers import assert_near, check, make, oracle

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16


@pytest.fixture(params=["fused", "split", "chosen"])
def way(request, monkeypatch):
    """The Triton kernel that gathers and activates; products and kernels of their own; and what the layer chooses."""
    if request.param != "chosen":
        fused = request.param == "fused"
        monkeypatch.setattr(layer, "is_fused", lambda operands, form, *rest: fused and not form.on_input)
    return request.param


@contextlib.contextmanager
def no_sync():
    """Any wait of the host for the device is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def balanced(made, experts, seed=0):
    """Ids of distinct experts for each token, drawn with more for the first ones; a few of other ranks."""
    tokens, top_k = made.ids.shape
    rng = torch.Generator(device="cuda").manual_seed(seed)
    odds = (1 + torch.arange(experts, device="cuda")) ** -0.8
    ids = torch.multinomial(odds.expand(tokens, experts), top_k, generator=rng)
    ids[::97, -1] = experts
    return ids


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "sizes",
    [(2048, 1024, 512, 32, 4), (4096, 2048, 768, 64, 8), (333, 960, 416, 16, 2), (7, 2048, 768, 64, 8)],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, dict(bias=True, activation="swiglu_oai", concatenated=False)], ids=["", "oai"])
def test_real_sizes(sizes, options):
    made = make(*sizes, dtype=BF16, **options)
    made.ids = balanced(made, sizes[3])
    check(made, by_norm=bool(options))  # which have a limit


@pytest.fixture
def asked(monkeypatch):
    """The forms that the kernel in CuTe DSL is asked for, which computes all products: group extent, load, epilogue,
    bytes of a bias."""
    hopper_gpu()
    cute_alone(monkeypatch)
    forms, choose = set(), cute.choose

    def noted(form, *others):
        forms.add((form.along, form.load, form.epilogue, form.bias_bytes))
        return choose(form, *others)

    monkeypatch.setattr(cute, "choose", noted)
    return forms


def biased(sizes, bias, **options):
    made = make(*sizes, dtype=BF16, bias=True, activation="swiglu_oai", **options)
    made.ids = balanced(made, sizes[3])
    for name in ("gate_up_bias", "down_bias"):
        made.tensors[name] = made.tensors[name].to(bias)
    return made


# Of the second one no tile divides a size.
BIASED = pytest.mark.parametrize("sizes", [(2048, 1024, 512, 32, 4), (999, 968, 424, 16, 2)], ids=str)
OF_BIAS = pytest.mark.parametrize("bias", [BF16, torch.float32], ids=str)


@BIASED
@OF_BIAS
def test_a_layer_of_gpt_oss_on_hopper(asked, sizes, bias):
    """Gate and up take turns: without gradients two products compute it. A step stores their argument in the same
    order, which needs steps of their own."""
    made, size = biased(sizes, bias, concatenated=False), bias.itemsize
    with torch.no_grad():
        out = made()
        wanted = oracle(made.exact())
        assert asked == {("m", "gather", "gated", size), ("m", "tma", "store", size)}
        assert_near(out, wanted, BF16, "result", by_norm=True)
        assert torch.equal(made(), out), "with the plan that the first call left"
    asked.clear()
    check(made, by_norm=True)
    assert asked == {("m", "tma", "store", size), ("m", "tma", "store", 0), ("k", "tma", "store", 0)}


@BIASED
@OF_BIAS
def test_a_layer_with_biases_on_hopper(asked, sizes, bias):
    """With the gate's columns first a step's products do all."""
    made, size = biased(sizes, bias), bias.itemsize
    check(made, by_norm=True)
    rows = {("m", "gather", "gated_pre", size), ("m", "tma", "store", size), ("m", "tma", "store", 0)}
    gradients = {("m", "gather", "gated_backward", 0), ("k", "gather", "store", 0), ("k", "gather_b", "store", 0)}
    assert asked == rows | gradients
    asked.clear()
    with torch.no_grad():
        assert_near(made(), oracle(made.exact()), BF16, "result", by_norm=True)
    assert ("m", "gather", "gated", size) in asked


def test_columns_of_gate_and_up_that_take_turns_on_hopper(asked):
    """Weights as gpt-oss stores them, whose columns are contiguous: a product of its own, with a bias, and a step."""
    made = biased((999, 968, 424, 16, 2), BF16, concatenated=False)
    for name in ("gate_up", "down"):
        made.tensors[name] = made.tensors[name].mT.contiguous().mT
    with torch.no_grad():
        assert_near(made(), oracle(made.exact()), BF16, "result", by_norm=True)
    assert asked == {("m", "tma", "store", 2)}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", ["gelu", "relu2", "reglu", "geglu_tanh"])
def test_other_activations(name):
    made = make(1024, 512, 320, 8, 2, dtype=BF16, activation=name)
    made.ids = balanced(made, 8)
    check(made)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_other_dtypes(dtype):
    made = make(512, 256, 192, 8, 2, dtype=dtype)
    made.ids = balanced(made, 8)
    check(made)


def test_weights_on_the_input():
    made = make(777, 512, 256, 16, 1, dtype=BF16, weights_on="input")
    made.ids = balanced(made, 16)
    check(made)


@pytest.mark.parametrize("choices", [routing.FEW - 8, routing.FEW, routing.FEW + 8, 4 * routing.FEW])
@pytest.mark.parametrize("experts", [8, 512])
def test_both_kernels_of_the_routing(choices, experts):
    ids = torch.randint(-1, experts + 1, (choices // 8, 8), device="cuda")
    wanted, found = Routing.of(ids, experts, backend="torch"), Routing.of(ids, experts)
    assert all(torch.equal(*pair) for pair in zip(wanted, found))
    made = make(choices // 8, 64, 64, min(experts, 16), 8, dtype=BF16)
    check(made)


def train(made):
    out = made()
    out.backward(torch.ones_like(out))
    return out


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("tokens", [4, 2048])
def test_no_host_sync(tokens):
    made = make(tokens, 512, 256, 16, 4, dtype=BF16, bias=True).leaves()
    made.ids = balanced(made, 16)
    train(made)
    made.ids = balanced(made, 16, 1)
    with no_sync():
        train(made)
        with torch.no_grad():
            made()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("tokens", [8, 1024])
def test_one_graph_for_every_routing(tokens):
    made = make(tokens, 512, 256, 16, 4, dtype=BF16).leaves()
    made.ids = balanced(made, 16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        train(made)
    torch.cuda.synchronize()
    for each in made.tensors.values():
        each.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = train(made)
    for seed in range(1, 4):
        ids = balanced(made, 16, seed) if seed < 3 else torch.full_like(made.ids, 5)
        made.ids.copy_(ids)
        for each in made.tensors.values():
            each.grad.zero_()
        graph.replay()
        other = make(tokens, 512, 256, 16, 4, dtype=BF16).leaves()
        other.ids = ids
        wanted = train(other)
        assert torch.equal(out, wanted)
        for one, another in zip(made.gradients().values(), other.gradients().values()):
            assert torch.equal(one, another)


@pytest.mark.usefixtures("way")
def test_the_same_bits_every_time():
    made = make(3000, 512, 256, 16, 4, dtype=BF16, bias=True)
    made.ids = balanced(made, 16)
    results = []
    for _ in range(3):
        mine = made.leaves()
        results.append([train(mine), *mine.gradients().values()])
    for other in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], other))


@pytest.mark.usefixtures("way")
def test_bytes_kept_for_the_backward():
    """x and the activation's argument, 2 * H + 4 * k * I bytes a token, and a few for the routing."""
    tokens, hidden, inner, experts, top_k = 4096, 1024, 512, 32, 4
    made = make(tokens, hidden, inner, experts, top_k, dtype=BF16).leaves()
    made.ids = balanced(made, experts)
    train(made)
    made = made.leaves()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    x = made.tensors["x"].detach().clone().requires_grad_()
    made.tensors["x"] = x
    out = made()
    kept = torch.cuda.memory_allocated() - before - out.numel() * 2
    bytes_of_tokens = (2 * hidden + 4 * top_k * inner) * tokens
    assert kept <= 1.05 * bytes_of_tokens
    torch.cuda.reset_peak_memory_stats()
    out.backward(torch.ones_like(out))
    peak = torch.cuda.max_memory_allocated() - before
    weights = 2 * sum(made.tensors[name].numel() for name in ("gate_up", "down"))
    rows = tokens * top_k
    # Beside what is kept and the gradients: the result and its gradient, the argument's gradient, the activation, and
    # rows of x or of the result's gradient, twice.
    most = 1.1 * (bytes_of_tokens + weights + 6 * hidden * tokens + rows * (4 * inner + 4 * inner + 4 * hidden))
    assert peak <= most


def test_another_device_is_current():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    made = make(64, 128, 64, 4, 2, dtype=BF16, device="cuda:1")
    check(made)


def test_a_stream_of_ones_own():
    made = make(256, 256, 128, 8, 2, dtype=BF16)
    made.ids = balanced(made, 8)
    wanted = made()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = made()
    stream.synchronize()
    assert torch.equal(found, wanted)
