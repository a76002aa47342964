"""Plans of whole calls: they serve the calls whose key they have, cost few Python calls, and hide nothing."""

from __future__ import annotations

import functools
import threading

import pytest
import torch
from torch.nn import Parameter

from course_kernels import moe_feed_forward, runtime
from course_kernels.engine import plans as engine_plans
from course_kernels.kernels.codes import Activation, Function
from course_kernels.moe import Routing, api, launching, layer, layer_plan, routing, steps
from course_kernels.moe.form import Operands
from launchless import counted, launch_nothing
from moe_layers import DEVICE, NAMES, assert_near, make, oracle

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
WARM = "feed_forward_planned"


def small(tokens=9, hidden=16, inner=8, experts=2, top_k=2, **options):
    """A layer of kernels, as small as it can be: plans do not depend on how much there is to compute."""
    return make(tokens, hidden, inner, experts, top_k, **{"backend": "triton"} | options)


@pytest.fixture
def planned(monkeypatch):
    """The plans that calls took."""
    taken, genuine = [], getattr(api, WARM)
    monkeypatch.setattr(api, WARM, lambda *given: taken.append(given[-1]) or genuine(*given))
    return taken


def calls(made):
    """The positional arguments of a call, and its keywords."""
    given = dict(made.tensors)
    return [*(given.pop(name) for name in NAMES[:3]), made.ids, given.pop("weights")], given | made.options


@pytest.mark.parametrize("top_k, tokens", [(3, 7), (1, 1), (2, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, dict(bias=True, concatenated=False), dict(activation="relu2"), dict(activation="swiglu_oai")],
    ids=str,
)
def test_a_warm_call_is_the_first_one_again(top_k, tokens, dtype, options, planned, monkeypatch):
    made = make(tokens, top_k=top_k, dtype=dtype, backend="triton", **options)
    wanted = made()
    monkeypatch.setattr(api.checks, "check_operands", None)
    monkeypatch.setattr(layer, "execute", None)
    for _ in range(2):
        assert torch.equal(made(), wanted)
    assert len(planned) == 2
    assert len(layer_plan.plans) == 1
    other = make(tokens, top_k=top_k, dtype=dtype, backend="triton", seed=1, **options)
    assert_near(other(), oracle(other.exact()), dtype)
    assert len(planned) == 3


@pytest.mark.parametrize("leaves", [False, True])
def test_a_warm_call_makes_no_plan_of_a_product(monkeypatch, leaves):
    """A graph may be captured after one call."""
    monkeypatch.setattr(engine_plans, "plans", engine_plans.PlanCache())
    made = small(bias=True)
    made = made.leaves() if leaves else made
    made()
    monkeypatch.setattr(engine_plans, "choose", None)
    made()


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_a_warm_call(weights, planned):
    made = small(bias=True)
    made.tensors["weights"] = made.tensors["weights"].to(weights)
    first, second = made.leaves(), made.leaves()
    out = first()
    out.square().sum().backward()
    again = second()
    again.square().sum().backward()
    assert len(planned) == 1
    assert torch.equal(out, again)
    for name, grad in first.gradients().items():
        assert torch.equal(grad, second.gradients()[name]), name


def test_backwards_of_one_form_find_the_products_once(monkeypatch):
    """A gradient at another alignment has another form."""
    made, finds, genuine = small(), [], layer.find
    monkeypatch.setattr(layer, "find", lambda product, *rest: finds.append(product) or genuine(product, *rest))
    grad = torch.randn(9, 16, device=DEVICE)
    counts, results = [], []
    for each in (grad, grad, shifted(grad), shifted(grad), grad):
        mine = made.leaves()
        mine().backward(each)
        counts.append(len(finds))
        results.append(mine.gradients())
    assert counts == [5, 5, 9, 9, 9]  # of the first forward one, of a backward four
    for other in results[1:]:
        assert all(torch.equal(other[name], results[0][name]) for name in results[0])


def test_a_gradient_of_the_weights_alone(planned):
    """The activation's argument is kept where any operand asks for a gradient, and no plan without it serves then."""
    made = small()
    wanted = made()
    for names in (("x",), ("weights",), ("down",)):
        for _ in range(2):
            some = made.leaves(*names)
            out = some()
            out.sum().backward()
            assert torch.equal(out, wanted)
            assert [name for name, grad in some.gradients().items() if grad is not None] == list(names)
        assert not made().requires_grad
    with torch.no_grad():
        assert not made.leaves()().requires_grad
    assert len(layer_plan.plans) == 2


def strided(tensor):
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
    wide[..., ::2] = tensor
    return wide[..., ::2]


def shifted(tensor):
    """A copy whose address is no multiple of 16."""
    flat = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)[1:]
    return flat.copy_(tensor.reshape(-1)).view(tensor.shape)


def negated(tensor):
    """The same numbers, whose signs are to be changed on reading."""
    return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag


def column_major(tensor):
    return tensor.mT.contiguous().mT


CHANGES = [(name, change) for name in NAMES for change in (strided, shifted, column_major, negated, Parameter)]


@pytest.mark.parametrize("name, change", CHANGES, ids=lambda each: getattr(each, "__name__", each))
def test_another_form_of_a_tensor_is_no_stale_plan(name, change):
    made = small(bias=True)
    wanted = made()
    assert torch.equal(made(), wanted)
    other = made.leaves()
    other.tensors = {each: tensor.detach() for each, tensor in made.tensors.items()}
    other.tensors[name] = change(made.tensors[name])
    for _ in range(3):
        assert_near(other(), oracle(other.exact()), torch.float32)
    assert torch.equal(made(), wanted)
    assert len(layer_plan.plans) == 1 + (change is not negated)


@pytest.mark.parametrize("change", [strided, shifted, column_major, torch.Tensor.int], ids=lambda each: each.__name__)
def test_another_form_of_the_ids_is_no_stale_plan(change):
    made = small()
    wanted = made()
    assert torch.equal(made(), wanted)
    made.ids = change(made.ids)
    for _ in range(3):
        assert torch.equal(made(), wanted)


SHAPES = dict(tokens=11, hidden=24, inner=16, experts=3, top_k=1)
OPTIONS = [
    dict(activation="geglu"), dict(activation="relu"), dict(concatenated=False), dict(weights_on="input"),
    dict(backend="torch"), dict(num_sms=3), dict(bias=True), dict(dtype=torch.bfloat16), dict(dtype=torch.float16),
    dict(activation=Activation(Function.SILU, alpha=1.5)), dict(activation=Activation(Function.SILU, shift=1.0)),
]  # fmt: skip


@pytest.mark.parametrize("change", [*({name: each} for name, each in SHAPES.items()), *OPTIONS], ids=str)
def test_another_shape_dtype_or_option_is_no_stale_plan(change):
    made = small()
    wanted = made()
    assert torch.equal(made(), wanted)
    other = small(**change)
    for _ in range(3):
        assert_near(other(), oracle(other.exact()), change.get("dtype", torch.float32))
    assert torch.equal(made(), wanted)


def test_tf32_has_plans_of_its_own(monkeypatch, planned):
    made = small()
    for allowed in (False, True, False, True):
        monkeypatch.setattr(runtime, "allows_tf32", lambda allowed=allowed: allowed)
        made()
    assert [plan is planned[0] for plan in planned] == [True, False]


BAD = {
    "x": [None, "x", torch.ones(9, 24, 1), torch.ones(9, 23), torch.ones(8, 24), torch.ones(9, 24).double(),
          torch.ones(9, 24).bfloat16(), torch.ones(9, 24, device="meta"), torch.ones(9, 24).to_sparse()],
    "gate_up": [None, torch.ones(5, 24, 80), torch.ones(4, 80, 24), torch.ones(5, 79, 24), torch.Tensor],
    "down": [3, torch.ones(5, 40, 24), torch.ones(5, 24, 41), torch.ones(5, 24, 40).half()],
    "weights": [None, torch.ones(9, 3).int(), torch.ones(8, 3), torch.ones(9, 2), torch.ones(9)],
    "ids": [None, torch.ones(9, 3), torch.ones(9, 2).int(), torch.ones(9, 3).bool(), torch.zeros(3, 9).long().mT[:8]],
    "activation": ["no", 3, (0, True, 1.0, None, 0.0), Activation(Function.SILU, gated=1), [],
                   Activation(Function.SILU, alpha=True), Activation(Function.SILU, alpha=float("nan"))],
    "concatenated": [1, "yes", None], "weights_on": ["outputs", None, []], "backend": ["gpu", None, {}],
    "num_sms": [0, True, 1.0, "1"],
    "gate_up_bias": [3, torch.ones(5, 79), torch.ones(5, 80).double()], "lora": [3], "routing": [3],
    "fp8_recipe": ["x"], "main_grads": [3, (None,)], "ep": [3, "ep"],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_raise_what_they_raised(name):
    """After a warm call of good ones: the same errors as without."""
    made = make(9, backend="triton", num_sms=1, activation=Activation(Function.SILU), concatenated=True)
    positional = ["x", "gate_up", "down", "ids", "weights"]

    def error_of(value):
        value = value.to(DEVICE) if isinstance(value, torch.Tensor) and not value.is_meta else value
        given, options = calls(made)
        if name in positional:
            given[positional.index(name)] = value
        else:
            options[name] = value
        with pytest.raises((TypeError, ValueError)) as raised:
            moe_feed_forward(*given, **options)
        return raised.type, str(raised.value)

    cold = [error_of(value) for value in BAD[name]]
    assert len(layer_plan.plans) == 0
    wanted = made()
    assert torch.equal(made(), wanted)
    assert [error_of(value) for value in BAD[name]] == cold
    assert len(layer_plan.plans) == 1, "each met the plan"


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        SEEN.append(str(function))
        return function(*args, **kwargs or {})


class Overridden(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        SEEN.append(getattr(function, "__name__", ""))
        return function(*args, **kwargs or {})


class Mine(torch.Tensor):
    pass


SEEN = []


def test_contexts_of_torch_see_warm_calls(monkeypatch):
    made = small()
    wanted = made()
    assert torch.equal(made(), wanted)
    SEEN.clear()
    with Overridden():
        assert torch.equal(made(), wanted)
    assert "moe_feed_forward" in SEEN
    monkeypatch.setattr(api, WARM, None)
    with Seen():
        assert torch.equal(made(), wanted)
    assert "course_kernels.moe_feed_forward.default" in SEEN
    with torch.autograd.profiler.profile() as profile:
        made()
    assert any(event.name == "course_kernels::moe_feed_forward" for event in profile.function_events)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert made().dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match=r"torch\.func"):
        torch.func.grad(lambda x: moe_feed_forward(x, *calls(made)[0][1:], backend="triton").sum())(made.tensors["x"])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(made.tensors["x"], made.tensors["x"])
        with pytest.raises(RuntimeError, match="forward-mode"):
            moe_feed_forward(dual, *calls(made)[0][1:], backend="triton")
    subclassed = made.tensors["x"].as_subclass(Mine)
    assert type(moe_feed_forward(subclassed, *calls(made)[0][1:], backend="triton")) is Mine


def test_a_given_routing_and_inference_mode(planned):
    made = small()
    wanted = made()
    routing = Routing.of(made.ids, 2, backend="triton")
    assert torch.equal(made(routing=routing), wanted)
    assert not planned
    with torch.inference_mode():
        assert torch.equal(made(), wanted)
    assert len(planned) == 1


def test_memory_that_was_freed_has_no_key():
    made = small()
    made()
    storage = made.tensors["gate_up"].untyped_storage()
    size = storage.size()
    storage.resize_(0)
    given, _ = calls(made)
    assert layer_plan.key_of(Operands(*given[:3], given[4]), given[3], (None, None), "swiglu") is None
    storage.resize_(size)


def test_threads_share_a_plan():
    made = small(40)
    wanted, found = made(), {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: made()})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[i], wanted) for i in range(4))


# ---- host time: what is counted holds on every machine


@pytest.fixture
def launchless(monkeypatch):
    launch_nothing(monkeypatch)


@pytest.mark.parametrize("tokens, most", [(64, (65, 75)), (1024, (80, 85))])
@pytest.mark.usefixtures("launchless")
def test_a_warm_forward_makes_few_calls(tokens, most, monkeypatch):
    """Before there were plans: 159 and 138 for 64 tokens. Who adds a check to each call adds it to the key instead."""
    monkeypatch.setattr(layer, "FUSED_ROWS", tokens * 8)  # as on a GPU whose products' kernels gather and activate
    made = make(tokens, 64, 32, 8, 8, dtype=torch.bfloat16, backend="triton")
    given, options = calls(made)
    for _ in range(3):
        moe_feed_forward(*given, **options)
    found = counted(lambda: moe_feed_forward(*given, **options))
    assert found.python <= most[0], found
    assert found.c <= most[1], found


@pytest.mark.skipif(runtime.mode() != "interpreter", reason="on a GPU a backward has a thread of its own")
@pytest.mark.usefixtures("launchless")
def test_a_warm_step_makes_few_calls(monkeypatch):
    """Before backwards kept their plans: 406 and 452."""
    zeros = functools.partial(torch.zeros, dtype=torch.int32)  # nothing sorts; torch reads the choices
    monkeypatch.setattr(routing, "_numbers", lambda size, device: zeros(size))
    monkeypatch.setattr(steps, "launch", launching.launch)
    made = make(64, 64, 32, 8, 8, dtype=torch.bfloat16, backend="triton").leaves()
    grad = torch.zeros(64, 64, dtype=torch.bfloat16)
    for _ in range(3):
        made().backward(grad)
    found = counted(lambda: made().backward(grad))
    assert found.python <= 275, found
    assert found.c <= 310, found
