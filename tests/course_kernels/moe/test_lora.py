"""Adapters on the experts: results and gradients against float64, frozen experts, what is kept, bad arguments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from course_kernels import moe_feed_forward, runtime
from course_kernels.moe import Lora, layer
from course_kernels.moe.lora import Adapter
from moe_layers import ADAPTERS, DEVICE, Layer, adapted, check, kept_bytes, make, routing_bytes

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
backends = pytest.mark.parametrize("backend", BACKENDS)
TRAINED = ("x", "weights", *ADAPTERS)


@pytest.fixture(params=["fused", "split"])
def way(request, monkeypatch):
    """The Triton kernel that gathers and activates, and kernels of their own for these."""
    fused = request.param == "fused"
    monkeypatch.setattr(layer, "is_fused", lambda operands, form, *rest: fused and not form.on_input)
    return request.param


@pytest.fixture
def poison(monkeypatch):
    """Memory that nobody has written to is NaN."""
    genuine = torch.empty

    def spoil(*given, **options):
        made = genuine(*given, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(2**30)

    monkeypatch.setattr(torch, "empty", spoil)


OPTIONS = [
    {}, dict(bias=True, scale=0.25), dict(weights_on="input", scale=(0.5, 2.0)), dict(concatenated=False, scale=2),
    dict(activation="relu2", bias=True),
]  # fmt: skip


@backends
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_results_and_all_gradients(backend, options):
    check(adapted(make(backend=backend, **options)))


@pytest.mark.usefixtures("way", "poison")
@pytest.mark.parametrize("options", OPTIONS[1:3], ids=str)
def test_both_ways_of_the_kernels(options):
    check(adapted(make(backend="triton", **options), 12), *TRAINED)


@backends
@pytest.mark.parametrize("rank", [1, 8, 12, 64, 70])
def test_every_rank(backend, rank):
    check(adapted(make(backend=backend), rank), *TRAINED)


@backends
@pytest.mark.parametrize("which", [ADAPTERS[:2], ADAPTERS[2:]], ids=["gate_up", "down"])
def test_one_pair_alone(backend, which):
    check(adapted(make(backend=backend, bias=True), which=which))


@backends
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "float32 adapters"])
def test_every_dtype(backend, dtype, wide):
    check(adapted(make(dtype=dtype, backend=backend), dtype=torch.float32 if wide else None), factor=2)


@settings(max_examples=8, deadline=None)
@given(
    tokens=st.integers(0, 9), hidden=st.integers(1, 20), inner=st.integers(1, 20), experts=st.integers(1, 4),
    top_k=st.integers(1, 3), rank=st.integers(1, 20), seed=st.integers(0, 99), backend=st.sampled_from(BACKENDS),
)  # fmt: skip
def test_any_shape(tokens, hidden, inner, experts, top_k, rank, seed, backend):
    check(adapted(make(tokens, hidden, inner, experts, top_k, seed=seed, backend=backend), rank))


@backends
def test_no_expert_here_has_a_token(backend):
    made = adapted(make(4, backend=backend))
    made.ids[:] = 9
    mine = made.leaves()
    out = mine()
    out.sum().backward()
    assert not out.any()
    assert all(not grad.any() for grad in mine.gradients().values())


@backends
def test_nothing_of_experts_without_tokens_is_read(backend):
    made = adapted(make(8, backend=backend))
    made.ids[:] = torch.tensor([0, 3, 7]).tile(8, 1).to(made.ids)
    made.tensors["weights"][:, 2] = float("nan")
    for name in ADAPTERS:
        made.tensors[name][[1, 2, 4]] = float("nan")
    mine = made.leaves()
    out = mine()
    out.sum().backward()
    assert not out.isnan().any()
    assert not any(each.isnan().any() for each in mine.gradients().values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_one_rounding_of_the_argument(dtype):
    """The base alone rounds to a multiple of 2 ** -k where the sum of both does not."""
    ones = torch.ones(1, 1, device=DEVICE, dtype=dtype)
    small = torch.finfo(dtype).eps / 2  # half of the last place of 1: lost beside 1, and not beside -1 + 1
    gate_up, down = torch.tensor([1.0, -1.0], dtype=dtype, device=DEVICE)[None, None], ones[None]
    x = torch.ones(1, 2, device=DEVICE, dtype=dtype)
    x[0, 0] = 1 + 2 * small
    lora = Lora(torch.ones(1, 1, 2, device=DEVICE, dtype=dtype) * 0.5, ones[None] * small)
    down = torch.ones(1, 2, 1, device=DEVICE, dtype=dtype)
    ids, weights = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), torch.ones(1, 1, device=DEVICE)
    for backend in BACKENDS:
        out = moe_feed_forward(x, gate_up, down, ids, weights, activation="relu", lora=lora, backend=backend)
        assert (out.float() == 3 * small).all(), backend


def peft(made: Layer) -> tuple[Layer, dict[str, torch.Tensor]]:
    """The adapters as PEFT stores them, and their views."""
    stored = {}
    for name in ADAPTERS:
        factor = made.tensors[name]
        flat = factor.reshape(-1, factor.shape[2]) if name[-1] == "a" else factor.permute(1, 2, 0).flatten(1)
        stored[name] = flat.contiguous().requires_grad_()
    experts, views = made.tensors["gate_up"].shape[0], {}
    for name, flat in stored.items():
        if name[-1] == "a":
            views[name] = flat.view(experts, -1, flat.shape[1])
        else:
            views[name] = flat.view(flat.shape[0], -1, experts).permute(2, 0, 1)
    return Layer(made.tensors | views, made.ids, made.options), stored


@backends
def test_views_of_pefts_parameters(backend):
    made = adapted(make(backend=backend))
    mine, plain = peft(made), made.leaves(*ADAPTERS)
    assert all(mine[0].tensors[name].data_ptr() == each.data_ptr() for name, each in mine[1].items())
    out, wanted = mine[0](), plain()
    assert torch.equal(out, wanted)
    out.sum().backward()
    wanted.sum().backward()
    for name, each in peft(Layer(plain.gradients() | dict(gate_up=made.tensors["gate_up"]), made.ids))[1].items():
        assert torch.equal(mine[1][name].grad, each)


# ---- frozen experts


def test_frozen_experts_cost_no_gradient_of_a_weight(monkeypatch):
    """With adapters alone to train, the backward multiplies along the rows for thin factors only."""
    wide, genuine = [], layer.execute

    def execute(product, *others):
        if product.b.dim() == 2:
            wide.append((product.a.shape[0], product.b.shape[1]))
        return genuine(product, *others)

    monkeypatch.setattr(layer, "execute", execute)
    made = adapted(make(backend="triton"), 4)
    made.leaves(*TRAINED)().sum().backward()
    assert sorted(wide) == [(4, 24), (4, 40), (24, 4), (80, 4)]
    wide.clear()
    made.leaves("gate_up_b")().sum().backward()
    assert wide == [(80, 4)]
    wide.clear()
    made.leaves()().sum().backward()
    assert len(wide) == 6


@backends
@pytest.mark.parametrize("names", [("x",), ("gate_up_a",), ("gate_up_b",), ("down_a",), ("down_b",), ("weights",)])
def test_gradients_of_one_tensor_alone(backend, names):
    check(adapted(make(backend=backend)), *names)


def test_the_backward_keeps_thin_rows_beside_the_argument():
    made = adapted(make(dtype=torch.bfloat16, backend="triton"), 8).leaves(*TRAINED)
    rows = made.ids.numel()
    assert kept_bytes(made) == rows * (80 + 2 * 8) * 2 + routing_bytes(made)


# ---- torch's contexts


@backends
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(backend, reentrant):
    made = adapted(make(backend=backend))
    wanted, mine = made.leaves(), made.leaves()
    wanted().sum().backward()

    def block(x):
        return Layer(mine.tensors | dict(x=x), mine.ids, mine.options)()

    checkpoint(block, mine.tensors["x"], use_reentrant=reentrant).sum().backward()
    for one, other in zip(wanted.gradients().values(), mine.gradients().values()):
        assert torch.equal(one, other)


@backends
def test_autocast(backend):
    made = adapted(make(backend=backend)).leaves()
    with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
        out = made()
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(each.grad.dtype == torch.float32 for each in made.tensors.values())


def test_gradients_of_gradients_are_refused():
    made = adapted(make(3)).leaves()
    with pytest.raises(RuntimeError, match="no gradients of gradients"):
        torch.autograd.grad(made().sum(), made.tensors["gate_up_a"], create_graph=True)


# ---- bad arguments

GOOD = {name: each for name, each in adapted(make(3)).tensors.items() if name in ADAPTERS}


@pytest.mark.parametrize(
    ("lora", "error", "message"),
    [
        (tuple(GOOD.values()), TypeError, "lora must be a course_kernels.moe.Lora or None, got tuple"),
        (Lora(GOOD["gate_up_a"]), ValueError, "lora.gate_up_b must be given beside lora.gate_up_a, got None"),
        (Lora(down_b=GOOD["down_b"]), ValueError, "lora.down_a must be given beside lora.down_b, got None"),
        (Lora(*[3] * 4), TypeError, "lora.gate_up_a must be a torch.Tensor, got int"),
        (
            Lora(GOOD["gate_up_a"].mT, GOOD["gate_up_b"]), ValueError,
            r"lora.gate_up_a must have shape \(5, r, 24\), got \(5, 24, 8\)",
        ),
        (
            Lora(GOOD["gate_up_a"], GOOD["gate_up_b"].mT), ValueError,
            r"lora.gate_up_b must have shape \(5, 80, r\), got \(5, 8, 80\)",
        ),
        (
            Lora(GOOD["gate_up_a"], GOOD["gate_up_b"][:, :, :4]), ValueError,
            r"lora.gate_up_b must have the rank of lora.gate_up_a, 8, got shape \(5, 80, 4\)",
        ),
        (
            Lora(GOOD["gate_up_a"][:, :0], GOOD["gate_up_b"][:, :, :0]), ValueError,
            "lora.gate_up_a must have a rank of at least 1",
        ),
        (
            Lora(GOOD["gate_up_a"].double(), GOOD["gate_up_b"]), TypeError,
            "lora.gate_up_a must have dtype torch.float32, got torch.float64",
        ),
        (Lora(**GOOD, scale="1"), TypeError, "lora.scale must be a number or a pair of numbers, got '1'"),
        (Lora(**GOOD, scale=(1.0,)), TypeError, "lora.scale must be a number or a pair"),
        (Lora(**GOOD, scale=float("inf")), ValueError, "lora.scale must be finite, got inf"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_adapters(lora, error, message):
    with pytest.raises(error, match=message):
        make(3)(lora=lora)


def test_no_main_gradients_beside_adapters():
    made = make(3).leaves()
    with pytest.raises(ValueError, match="main_grads must be None with lora"):
        made(lora=Lora(**GOOD), main_grads=(None, None))


def test_sizes_of_a_rank_with_expert_parallelism_are_checked_before_anything_is_sent():
    class Elsewhere:
        num_experts, num_local_experts = 10, 5

        def products_sms(self, device, num_sms):
            return num_sms

        def local(self, **weights):
            if any(each is not None and each.shape[0] != 5 for each in weights.values()):
                raise ValueError(f"{next(iter(weights))} must have this rank's 5 experts")
            return list(weights.values())

        def feed_forward(self, *given, **options):
            raise AssertionError("a rank that sends alone leaves the others waiting")

    made = make(3, experts=5)
    with pytest.raises(ValueError, match=r"lora.gate_up_a must have this rank's 5 experts"):
        made(lora=Lora(*(each[:4] for each in GOOD.values())), ep=Elsewhere())
    with pytest.raises(ValueError, match=r"lora.gate_up_b must have the rank"):
        made(lora=Lora(GOOD["gate_up_a"], GOOD["gate_up_b"][..., :2]), ep=Elsewhere())


@pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
def test_float8_beside_adapters_is_refused(recipe):
    with pytest.raises(ValueError, match="lora must be None where the layer computes in float8"):
        adapted(make())(fp8_recipe=recipe)


def test_the_rows_of_adapters_are_rounded_in_torch_as_kernels_store_them():
    made = torch.Generator().manual_seed(0)
    rows, a, b = (torch.randn(shape, generator=made).bfloat16() for shape in ((3, 24), (5, 8, 24), (5, 40, 8)))
    thin = Adapter(a, b, 0.5).thin(rows, 2)
    assert thin.dtype == torch.bfloat16
    torch.testing.assert_close(thin.float(), rows.float() @ a[2].float().mT, rtol=2**-8, atol=1e-6)
