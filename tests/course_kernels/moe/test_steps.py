"""The steps between the products, each alone: its values, and the rows and entries that it leaves as they were."""

from __future__ import annotations

import functools
import traceback

import pytest
import torch

from course_kernels import runtime
from course_kernels.engine.torch_activations import activate
from course_kernels.moe import ACTIVATIONS, Activation, Function, Routing, steps
from course_kernels.moe.activations import describe
from course_kernels.testing import integers
from moe_layers import DEVICE, assert_near, make

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

EXPERTS, TOKENS, TOP_K, COLS = 5, 9, 3, 20


@pytest.fixture
def routing():
    return Routing.of(make(TOKENS, experts=EXPERTS, top_k=TOP_K).ids, EXPERTS)


@pytest.fixture
def nan(monkeypatch):
    """Memory that was not written to is NaN."""

    def spoiled(*given, of, **options):
        made = of(*given, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, functools.partial(spoiled, of=getattr(torch, name)))


def split(routing, rows):
    """The rows of experts, and the others."""
    end = int(routing.ends[-1])
    assert 0 < end < rows.shape[0]
    return rows[:end], rows[end:]


@pytest.mark.usefixtures("nan")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gather(routing, dtype):
    x, weights = integers((COLS, TOKENS), dtype, 1, device=DEVICE).mT, make(TOKENS).tensors["weights"]
    rows, rest = split(routing, steps.gather(x, routing))
    end = rows.shape[0]
    assert torch.equal(rows, x[routing.tokens[:end].long()])
    assert rest.isnan().all(), "nobody reads these"
    scale = weights.reshape(-1)[routing.choices[:end].long(), None]
    weighted, _ = split(routing, steps.gather(x, routing, weights))
    assert torch.equal(weighted, (rows.float() * scale).to(dtype))
    wide, _ = split(routing, steps.gather(x, routing, weights, torch.float32))
    assert torch.equal(wide, rows.float() * scale)
    of_rows, rest = split(routing, steps.gather_weights(weights, routing))
    assert torch.equal(of_rows, scale[:, 0])
    assert rest.isnan().all(), "nobody reads these"


@pytest.mark.usefixtures("nan")
@pytest.mark.parametrize("kind", [*map(Activation, Function), ACTIVATIONS["relu2"]], ids=describe)
@pytest.mark.parametrize("takes_turns", [False, True])
def test_activation_and_its_gradient(routing, kind, takes_turns):
    takes_turns = takes_turns and kind.gated
    made = torch.Generator().manual_seed(0)
    pre = torch.randn(TOKENS * TOP_K, COLS * (1 + kind.gated), generator=made).to(DEVICE)
    rows, rest = split(routing, steps.activate(pre, routing, TOKENS, kind, takes_turns))
    end = rows.shape[0]
    leaf = pre[:end].double().requires_grad_()
    exact = activate(leaf, kind, takes_turns).double()
    assert_near(rows, exact.detach(), torch.float32)
    assert rest.isnan().all()

    grad = torch.randn(TOKENS * TOP_K, COLS, generator=made).to(DEVICE)
    weights = make(TOKENS).tensors["weights"]
    scale = weights.reshape(-1)[routing.choices[:end].long(), None]
    exact.backward(grad[:end].double() * scale)
    grad_pre, activated, grad_weights = steps.activation_gradient(
        grad, pre, routing, weights, TOKENS, kind, takes_turns
    )
    assert_near(split(routing, grad_pre)[0], leaf.grad, torch.float32)
    assert split(routing, grad_pre)[1].isnan().all()
    assert_near(split(routing, activated)[0], (exact * scale).detach(), torch.float32)
    dots = torch.zeros(TOKENS * TOP_K, dtype=torch.float64, device=DEVICE)
    dots[routing.choices[:end].long()] = (exact.detach() * grad[:end]).sum(1)
    assert_near(grad_weights.reshape(-1), dots, torch.float32)
    plain = steps.activation_gradient(grad, pre, routing, None, TOKENS, kind, takes_turns)
    assert plain[2] is None
    assert_near(split(routing, plain[1])[0], exact.detach(), torch.float32)


def test_an_unknown_function_is_refused(routing):
    pre, kind = torch.ones(TOKENS * TOP_K, 2 * COLS, device=DEVICE), Activation(99)
    grad = pre[:, ::2].contiguous()
    for call in (
        lambda: steps.activate(pre, routing, TOKENS, kind, False),
        lambda: steps.activation_gradient(grad, pre, routing, None, TOKENS, kind, False),
    ):
        with pytest.raises(Exception) as caught:
            call()
        assert "an unknown Function" in "".join(traceback.format_exception(caught.value))


def test_combine_and_dots(routing):
    rows = integers((TOKENS * TOP_K, COLS), torch.float32, 2, device=DEVICE)
    split(routing, rows)[1].fill_(float("nan"))
    x, weights = integers((TOKENS, COLS), torch.float32, 3, device=DEVICE), make(TOKENS).tensors["weights"]
    there = routing.rows >= 0
    places = torch.where(there[..., None], rows[routing.rows.clamp(min=0).long()], 0.0)
    assert torch.equal(steps.combine(rows, routing, TOKENS), places.sum(1))
    assert_near(
        steps.combine(rows, routing, TOKENS, weights), (places * weights[..., None]).sum(1).double(), torch.float32
    )
    assert torch.equal(steps.dots(rows, x, routing), (places * x[:, None]).sum(2))


def test_a_sum_of_many_small_rows_is_rounded_once():
    """256 + 1 is no bfloat16: a sum in that type would lose the ones."""
    routing = Routing.of(torch.zeros(1, 9, dtype=torch.int64, device=DEVICE), 1)
    rows = torch.ones(9, 4, dtype=torch.bfloat16, device=DEVICE)
    rows[0] = 256
    assert (steps.combine(rows, routing, 1) == 264).all()
