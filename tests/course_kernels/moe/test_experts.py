"""The module of experts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from course_kernels import moe_feed_forward
from course_kernels.moe import Activation, Experts, Function, Lora, Routing
from moe_layers import DEVICE, make


def test_parameters_and_their_first_values():
    torch.manual_seed(0)
    experts = Experts(4, 24, 40, bias=True, dtype=torch.bfloat16, device=DEVICE)
    shapes = {name: tuple(each.shape) for name, each in experts.named_parameters()}
    assert shapes == {
        "gate_up_proj": (4, 80, 24), "down_proj": (4, 24, 40), "gate_up_proj_bias": (4, 80), "down_proj_bias": (4, 24)
    }  # fmt: skip
    assert {each.dtype for each in experts.parameters()} == {torch.bfloat16}
    for name, inputs in (("gate_up_proj", 24), ("down_proj", 40), ("gate_up_proj_bias", 24), ("down_proj_bias", 40)):
        most = getattr(experts, name).float().abs().max().item()
        assert 0.8 * inputs**-0.5 < most <= inputs**-0.5 + 1e-3, name
    assert {*Experts(2, 8, 8).state_dict()} == {"gate_up_proj", "down_proj"}
    assert Experts(2, 8, 16, activation="relu2").gate_up_proj.shape == (2, 16, 8)


def test_one_seed_draws_the_same_experts_on_any_number_of_ranks():
    """And other ones on each rank: identical experts would stay identical."""

    def seeded(**options):
        torch.manual_seed(3)
        return dict(Experts(6, 16, 24, bias=True, device=DEVICE, **options).named_parameters())

    whole = seeded()
    ep = dict(num_experts=6, num_local_experts=3, feed_forward=None, of_all=lambda weight: weight)
    parts = [seeded(ep=SimpleNamespace(rank=rank, **ep)) for rank in range(2)]
    for name, each in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), each), name
        assert len({tuple(expert.flatten().tolist()) for expert in each}) == 6, name


def test_parameters_without_memory_are_drawn_later():
    experts = Experts(4, 24, 40, device="meta").to_empty(device=DEVICE)
    experts.down_proj.data.fill_(torch.nan)
    experts.reset_parameters()
    assert 0.1 < experts.down_proj.abs().max() <= 40**-0.5


def test_it_is_the_function_of_its_parameters():
    experts = Experts(5, 24, 40, activation="geglu", bias=True, concatenated=False, weights_on="input", device=DEVICE)
    made = make()
    x, weights = made.tensors["x"], made.tensors["weights"]
    wanted = moe_feed_forward(
        x, experts.gate_up_proj, experts.down_proj, made.ids, weights, activation="geglu",
        gate_up_bias=experts.gate_up_proj_bias, down_bias=experts.down_proj_bias, concatenated=False,
        weights_on="input",
    )  # fmt: skip
    assert torch.equal(experts(x, made.ids, weights), wanted)
    assert torch.equal(experts(x, None, weights, routing=Routing.of(made.ids, 5)), wanted)
    wanted.sum().backward()
    assert all(each.grad is not None for each in experts.parameters())


def test_it_adds_to_main_gradients():
    experts, made = Experts(5, 24, 40, device=DEVICE), make()
    x, weights = made.tensors["x"], made.tensors["weights"]
    main_grads = [torch.ones_like(each) for each in experts.parameters()]
    experts(x, made.ids, weights, main_grads=main_grads, num_sms=8).sum().backward()
    wanted = Experts(5, 24, 40, device=DEVICE)
    wanted.load_state_dict(experts.state_dict())
    wanted(x, made.ids, weights).sum().backward()
    for main_grad, mine, theirs in zip(main_grads, experts.parameters(), wanted.parameters(), strict=True):
        assert mine.grad is None
        assert torch.allclose(main_grad, 1 + theirs.grad, rtol=1e-4, atol=1e-4)


def test_it_takes_adapters_and_computes_in_float8():
    made = make()
    x, weights = made.tensors["x"], made.tensors["weights"]
    experts = Experts(5, 24, 40, device=DEVICE).requires_grad_(False)
    lora = Lora(*(torch.randn(5, *s, device=DEVICE, requires_grad=True) for s in ((2, 24), (80, 2), (2, 40), (24, 2))))
    given = x, experts.gate_up_proj, experts.down_proj, made.ids, weights
    out = experts(x, made.ids, weights, lora=lora)
    assert torch.equal(out, moe_feed_forward(*given, lora=lora))
    out.sum().backward()
    assert all(each.grad is not None for each in lora[:4])
    experts.fp8_recipe = "rowwise"
    rounded = experts(x, made.ids, weights)
    assert torch.equal(rounded, moe_feed_forward(*given, fp8_recipe="rowwise"))
    assert not torch.equal(rounded, moe_feed_forward(*given))


def test_repr():
    text = repr(Experts(4, 8, 16, activation=Activation(Function.RELU, limit=3.0)))
    assert "num_experts=4, hidden_size=8, intermediate_size=16" in text
    assert "bias=False" in text
    assert f"activation={Activation(Function.RELU, limit=3.0)}, bias=False)" in text
    assert repr(Experts(1, 8, 16)).endswith("activation=swiglu, bias=False)")
    chosen = dict(concatenated=False, weights_on="input", fp8_recipe="rowwise", backend="torch")
    text = repr(Experts(2, 8, 16, activation=Activation(Function.SILU), **chosen))
    assert text.endswith(
        "activation=swiglu, bias=False, concatenated=False, weights_on='input', fp8_recipe='rowwise', backend='torch')"
    )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((4.0, 8, 8), "num_experts must be an int, got float"), ((4, True, 8), "hidden_size must be an int, got bool"),
     ((4, 8, 0), "intermediate_size must be at least 1, got 0")],
)  # fmt: skip
def test_errors(sizes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Experts(*sizes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(backend="cuda"), r"backend must be one of \('auto', 'triton', 'cute', 'torch'\), got 'cuda'"),
        (dict(weights_on="x"), "weights_on must be one of"),
        (dict(concatenated=1), "concatenated must be True or False, got 1"),
        (dict(bias="no"), "bias must be True or False, got 'no'"),
        (dict(fp8_recipe="row"), "fp8_recipe must be one of .* or None, got 'row'"),
        (dict(dtype=torch.float64), "dtype must be one of .*, got torch.float64"),
        (dict(ep="ep"), "ep must be an ExpertParallel or None, got str"),
    ],
)
def test_options_are_refused_before_the_first_forward(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Experts(2, 8, 8, **options)


def test_a_width_that_is_not_the_modules():
    with pytest.raises(ValueError, match=r"x must have shape \(T, H\) with H = 8, got \(3, 16\)"):
        Experts(2, 8, 8)(torch.ones(3, 16), torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1))


def test_it_learns():
    torch.manual_seed(1)
    experts = Experts(3, 8, 16, device=DEVICE)
    made = make(32, 8, experts=3, top_k=2, seed=2)
    target = torch.randn(32, 8, device=DEVICE)
    optimizer, losses = torch.optim.Adam(experts.parameters(), lr=2e-2), []
    for _ in range(12):
        loss = (experts(made.tensors["x"], made.ids, made.tensors["weights"]) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
