"""``moe_feed_forward`` as its documentation describes it: ids, strides, gradients, main gradients, torch's contexts."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from course_kernels import moe_feed_forward, runtime
from course_kernels.moe import ACTIVATIONS, Activation, Function, Routing, layer
from course_kernels.testing import strided_like
from moe_layers import DEVICE, NAMES, Layer, assert_near, check, make, oracle

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
backends = pytest.mark.parametrize("backend", BACKENDS)


# ---- what is computed


@pytest.mark.parametrize("takes_turns", [False, True], ids=["concatenated", "interleaved"])
@pytest.mark.parametrize(("bias", "weights_on"), [(False, "output"), (True, "output"), (True, "input")])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_torchs_way_with_all_options(name, bias, weights_on, takes_turns):
    check(make(activation=name, bias=bias, weights_on=weights_on, concatenated=not takes_turns, backend="torch"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_torchs_way_in_every_dtype(dtype):
    check(make(dtype=dtype, bias=True, backend="torch"))


@backends
def test_an_activation_of_ones_own(backend):
    kind = Activation(Function.SILU, alpha=0.5, limit=0.75, shift=-0.25)
    check(make(activation=kind, backend=backend))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_both_ways_round_alike(dtype):
    """The argument of the activation, the activation, an expert's result: each is rounded, and nothing else."""
    exact = make(5, 16, 32, 3, 2, dtype=dtype, activation="relu", seed=3)
    for name in ("x", "gate_up", "down"):
        exact.tensors[name] = (exact.tensors[name] * 2).round()  # sums without rounding errors
    exact.tensors["weights"] = (exact.tensors["weights"] * 4).round() / 4
    exact.tensors["down"].clamp_(-2, 2)
    results = []
    for backend in BACKENDS:
        mine = exact.leaves()
        out = mine(backend=backend)
        out.sum().backward()
        results.append([out, *mine.gradients().values()])
    for one, other in zip(*results):
        assert torch.equal(one, other)


# ---- ids


@backends
def test_one_token_and_no_tokens(backend):
    check(make(1, backend=backend, seed=1))
    none = make(0, backend=backend).leaves()
    out = none()
    assert out.shape == (0, 24)
    out.sum().backward()
    assert all(grad is not None and not grad.any() for grad in none.gradients().values())


@backends
def test_no_choices_at_all(backend):
    made = make(4, top_k=1, backend=backend)
    made.tensors["weights"], made.ids = made.tensors["weights"][:, :0], made.ids[:, :0]
    mine = made.leaves()
    out = mine()
    assert out.shape == (4, 24)
    assert not out.any()
    out.sum().backward()
    assert all(grad is not None and not grad.any() for grad in mine.gradients().values())


@backends
def test_one_expert_and_one_choice(backend):
    made = make(5, experts=1, top_k=1, backend=backend)
    made.ids[:] = torch.tensor([[0], [1], [0], [-7], [0]])
    check(made)


@backends
def test_a_token_that_chose_an_expert_twice_counts_twice(backend):
    made = make(3, top_k=2, backend=backend)
    made.ids[:] = torch.tensor([[1, 1], [4, 0], [0, 1]])
    check(made)
    once = make(3, top_k=2, backend=backend)
    once.ids[:] = torch.tensor([[1, -1], [4, 0], [0, 1]])
    once.tensors["weights"] = made.tensors["weights"].clone()
    once.tensors["weights"][0, 0] += once.tensors["weights"][0, 1]
    assert_near(made(), once().double(), torch.float32)


@backends
def test_no_expert_here_has_a_token(backend):
    made = make(4, backend=backend, bias=True)
    made.ids[:] = torch.tensor([-1, 5, 2**30])
    mine = made.leaves()
    out = mine()
    assert not out.any()
    out.sum().backward()
    assert all(not grad.any() for grad in mine.gradients().values())


@backends
@pytest.mark.parametrize("weights_on", ["output", "input"])
def test_nothing_of_other_ranks_is_read(backend, weights_on):
    """NaN in the tokens that chose no expert here, in the weights of such choices, and in experts without tokens."""
    made = make(8, bias=True, weights_on=weights_on, backend=backend)
    made.ids[:] = torch.tensor([0, 3, 0]).tile(8, 1).to(made.ids)
    made.ids[1::2, 1], made.ids[2], made.ids[5] = 5, -1, 2**31 - 1
    clean = make(8, bias=True, weights_on=weights_on, backend=backend)
    clean.ids = made.ids
    grad = torch.ones(8, 24, device=DEVICE)
    foreign = (made.ids < 0) | (made.ids >= 5)
    made.tensors["weights"][foreign] = float("nan")
    made.tensors["x"][foreign.all(1)] = float("nan")
    for name in ("gate_up", "down", "gate_up_bias", "down_bias"):
        for each in (made, clean):
            each.tensors[name][[1, 2, 4]] = float("nan") if each is made else 0.0
    results = []
    for each in (made, clean):
        leaves = each.leaves()
        out = leaves()
        out.backward(grad)
        results.append([out, *leaves.gradients().values()])
    for one, other in zip(*results):
        assert torch.equal(one, other)
    assert not results[0][4][foreign].any(), "weights of other ranks have a gradient of 0"


@backends
def test_a_nan_gradient_of_a_token_elsewhere_is_harmless(backend):
    made = make(6, bias=True, backend=backend).leaves()
    elsewhere = ((made.ids < 0) | (made.ids >= 5)).all(1)
    assert elsewhere.any()
    grad = torch.ones(6, 24, device=DEVICE)
    grad[elsewhere] = float("nan")
    made().backward(grad)
    assert not any(each.isnan().any() for each in made.gradients().values())


# ---- strides


@backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_transposed_weights(backend, dtype):
    """A parameter that is stored transposed gets a gradient that is stored like it, and is not copied."""
    made = make(dtype=dtype, backend=backend)
    for name in ("gate_up", "down"):
        made.tensors[name] = made.tensors[name].mT.contiguous().mT
    check(made)
    stored = {name: made.tensors[name].mT.detach().requires_grad_() for name in ("gate_up", "down")}
    assert all(each.is_contiguous() for each in stored.values())
    mine = Layer(made.tensors | {name: each.mT for name, each in stored.items()}, made.ids, made.options)
    mine().sum().backward()
    assert all(each.grad.is_contiguous() for each in stored.values())


@backends
def test_views_of_a_fused_parameter(backend):
    """All weights of a layer in one buffer, as a flat optimizer keeps them; strides that no layout has."""
    made = make(backend=backend)
    wide = torch.full((5, 80, 24 + 40), float("nan"), device=DEVICE)
    wide[:, :, :24], wide[:, :24, 24:] = made.tensors["gate_up"], made.tensors["down"]
    whole = wide.requires_grad_()
    mine = Layer(
        made.leaves().tensors | dict(gate_up=whole[:, :, :24], down=whole[:, :24, 24:]), made.ids, made.options
    )
    exact = made.exact()
    out, wanted = mine(), oracle(exact)
    assert_near(out, wanted.detach(), torch.float32)
    out.sum().backward()
    wanted.sum().backward()
    assert_near(whole.grad[:, :, :24], exact.tensors["gate_up"].grad, torch.float32, factor=2)
    assert_near(whole.grad[:, :24, 24:], exact.tensors["down"].grad, torch.float32, factor=2)
    assert not whole.grad[:, 24:, 24:].any()


@backends
@pytest.mark.parametrize("strides", ["col", "padded", "every_other"])
def test_any_strides(backend, strides):
    made = make(bias=True, dtype=torch.bfloat16, backend=backend)
    made.tensors = {name: strided_like(each, strides) for name, each in made.tensors.items()}
    made.ids = strided_like(made.ids, strides)
    check(made)
    check(Layer(made.tensors, made.ids.int(), made.options))


@backends
def test_expanded_and_strided_gradients_of_the_result(backend):
    made = make(bias=True, backend=backend)
    for grad in (torch.ones(1, 1, device=DEVICE).expand(7, 24), torch.randn(24, 7, device=DEVICE).mT):
        check(made, grad=grad)
    check(make(bias=True, backend=backend), grad=torch.randn(7, 24, device=DEVICE, dtype=torch.float32))


@given(data=st.data())
@settings(max_examples=10, deadline=None, derandomize=True)
def test_shapes_routings_and_strides(data):
    draw = data.draw
    tokens, hidden, inner = draw(st.integers(1, 9)), draw(st.integers(1, 40)), draw(st.integers(1, 40))
    experts, top_k, seed = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(0, 99))
    name = draw(st.sampled_from(list(ACTIVATIONS)))
    options = dict(
        activation=name, weights_on=draw(st.sampled_from(["output", "input"])), concatenated=draw(st.booleans()),
        backend=draw(st.sampled_from(BACKENDS)),
    )  # fmt: skip
    made = make(tokens, hidden, inner, experts, top_k, bias=draw(st.booleans()), seed=seed, **options)
    made.ids = torch.tensor(
        draw(st.lists(st.integers(-2, experts + 1), min_size=tokens * top_k, max_size=tokens * top_k)), device=DEVICE
    ).reshape(tokens, top_k)
    kinds = st.sampled_from(["row", "col", "padded", "every_other"])
    made.tensors = {name: strided_like(each, draw(kinds)) for name, each in made.tensors.items()}
    check(made, factor=2)


# ---- gradients of some operands


@backends
@pytest.mark.parametrize(
    ("name", "weights_on"),
    [*((name, "output") for name in NAMES), ("x", "input"), ("weights", "input")],
)
def test_the_gradient_of_one_operand_alone(backend, name, weights_on):
    check(make(4, bias=True, weights_on=weights_on, backend=backend), name)


def test_frozen_weights_cost_no_product(monkeypatch):
    """Of six products a step needs four: two of the forward, and two for the gradients of x and of the router."""
    made = []
    for name in ("execute", "find"):  # a forward's, a backward's
        genuine = getattr(layer, name)
        monkeypatch.setattr(layer, name, lambda product, *rest, to=genuine: made.append(product) or to(product, *rest))
    monkeypatch.setattr(layer, "is_fused", lambda *_: False)
    mine = make(backend="triton").leaves("x", "weights")
    mine().sum().backward()
    assert len(made) == 4


@backends
def test_without_gradients_nothing_is_kept(backend):
    made = make(backend=backend).leaves()
    with torch.no_grad():
        assert made().grad_fn is None
    assert make(backend=backend)().grad_fn is None


@backends
def test_gradients_of_gradients_are_refused(backend):
    made = make(3, backend=backend).leaves()
    with pytest.raises(RuntimeError, match="no gradients of gradients"):
        torch.autograd.grad(made().sum(), made.tensors["x"], create_graph=True)


@pytest.mark.parametrize("changed", ["x", "gate_up", "weights"])
def test_an_operand_that_was_changed_is_noticed(changed):
    made = make(3, backend="triton").leaves()
    leaves = dict(made.tensors)
    made.tensors = {name: each * 1 for name, each in leaves.items()}
    out = made()
    made.tensors[changed].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# ---- main gradients


def main_grads(made, *names):
    """A float32 tensor of ones for the weights named."""
    return tuple(torch.ones(made.tensors[n].shape, device=DEVICE) if n in names else None for n in ("gate_up", "down"))


@backends
@pytest.mark.parametrize("names", [("gate_up", "down"), ("gate_up",), ("down",)], ids="+".join)
def test_main_grads(backend, names):
    made = make(dtype=torch.bfloat16, bias=True, backend=backend)
    exact = made.exact()
    oracle(exact).sum().backward()
    grads = main_grads(made, *names)
    if len(names) == 2:  # stored otherwise than the weights
        grads = tuple(None if each is None else each.mT.contiguous().mT for each in grads)
    plain, mine = made.leaves(), made.leaves()
    plain().sum().backward()
    out = mine(main_grads=grads)
    assert all(each is None or (each == 1).all() for each in grads), "backward alone writes"
    versions = [None if each is None else each._version for each in grads]
    out.sum().backward()
    for name, grad, version in zip(("gate_up", "down"), grads, versions):
        if grad is None:
            assert torch.equal(mine.tensors[name].grad, plain.tensors[name].grad)
        else:
            assert mine.tensors[name].grad is None
            assert grad._version > version
            assert_near(grad - 1, exact.tensors[name].grad, torch.bfloat16, name, 2)
    for name in ("x", "weights", "gate_up_bias", "down_bias"):
        assert torch.equal(mine.tensors[name].grad, plain.tensors[name].grad)


@backends
def test_micro_batches_add_up(backend):
    made = make(backend=backend)
    grads = main_grads(made, "gate_up", "down")
    mine = made.leaves()
    for out in [mine(main_grads=grads) for _ in range(3)]:
        out.sum().backward()
    exact = made.exact()
    oracle(exact).sum().backward()
    for name, grad in zip(("gate_up", "down"), grads):
        assert_near(grad - 1, 3 * exact.tensors[name].grad, torch.float32, name, 2)


@backends
def test_a_backward_for_inputs_alone_adds_nothing(backend):
    """Pipelines split a backward: first the gradients of inputs, later those of weights."""
    made = make(backend=backend).leaves()
    grads = main_grads(made, "gate_up", "down")
    out = made(main_grads=grads)
    torch.autograd.grad(out.sum(), made.tensors["x"], retain_graph=True)
    assert all((each == 1).all() for each in grads)
    torch.autograd.backward(out.sum(), inputs=[made.tensors["gate_up"]], retain_graph=True)
    assert (grads[0] != 1).any()
    assert (grads[1] == 1).all()
    with pytest.raises(RuntimeError, match=r"main_grads must be None where torch\.autograd\.grad asks"):
        torch.autograd.grad(out.sum(), made.tensors["gate_up"])


# ---- a routing made once


@backends
def test_a_routing_made_once(backend):
    made = make(bias=True, backend=backend)
    routing = Routing.of(made.ids, 5, backend=backend)
    wanted, mine = made.leaves(), made.leaves()
    first = wanted()
    first.sum().backward()
    for ids in (None, torch.zeros_like(made.ids)):
        mine.ids = ids
        out = mine(routing=routing)
        assert torch.equal(out, first), "the routing decides, and ids do not"
    out.sum().backward()
    for one, other in zip(wanted.gradients().values(), mine.gradients().values()):
        assert torch.equal(one, other)


@backends
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_that_routes_otherwise(backend, reentrant):
    """A router that answers otherwise when it is asked again: the routing given decides for both."""
    made = make(backend=backend)
    wanted = made.leaves()
    wanted().sum().backward()
    mine, routing, calls = made.leaves(), Routing.of(made.ids, 5), []

    def block(x):
        calls.append(x)
        ids = made.ids if len(calls) == 1 else (made.ids + 1) % 5
        return Layer(mine.tensors | dict(x=x), ids, made.options)(routing=routing)

    checkpoint(block, mine.tensors["x"], use_reentrant=reentrant).sum().backward()
    assert len(calls) == 2
    for one, other in zip(wanted.gradients().values(), mine.gradients().values()):
        assert torch.equal(one, other)


# ---- autocast, overrides


@backends
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(backend, dtype):
    made = make(bias=True, backend=backend).leaves()
    with torch.autocast(torch.device(DEVICE).type, dtype):
        out = made()
    assert out.dtype == dtype
    out.float().sum().backward()
    narrow = {
        name: each.detach().to(dtype) if name in ("x", "gate_up", "down") else each.detach()
        for name, each in made.tensors.items()
    }
    wanted = Layer(narrow, made.ids, made.options).leaves()
    result = wanted()
    result.float().sum().backward()
    assert torch.equal(out, result)
    for name, grad in made.gradients().items():
        assert grad.dtype == torch.float32
        assert torch.equal(grad, wanted.tensors[name].grad.float())


def test_a_tensor_class_may_take_the_call():
    class Logged(torch.Tensor):
        seen = ()

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            Logged.seen += (function,)
            return super().__torch_function__(function, types, args, kwargs or {})

    made = make(3)
    made.tensors["down"] = made.tensors["down"].as_subclass(Logged)
    out = made()
    assert moe_feed_forward in Logged.seen
    assert type(out) is Logged


def test_torch_func_is_refused():
    made = make(3)

    def call(x):
        return Layer(made.tensors | dict(x=x), made.ids)().sum()

    for transform in (torch.func.grad(call), functools.partial(torch.func.vjp, call)):
        with pytest.raises(RuntimeError, match=r"moe_feed_forward has no rules for torch\.func"):
            transform(made.tensors["x"])


def test_forward_mode_is_refused():
    made = make(3)
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(made.tensors["x"], torch.ones_like(made.tensors["x"]))
        with pytest.raises(RuntimeError, match="moe_feed_forward has no forward-mode derivative") as refused:
            Layer(made.tensors | dict(x=x), made.ids)()
    assert "torch.func" not in str(refused.value)  # which is refused, too


def test_jit_trace_is_refused_by_its_name():
    made = make(3)
    with pytest.raises(RuntimeError, match=r"moe_feed_forward cannot be recorded by torch\.jit\.trace"):
        torch.jit.trace(lambda x: Layer(made.tensors | dict(x=x), made.ids)(), made.tensors["x"], check_trace=False)
