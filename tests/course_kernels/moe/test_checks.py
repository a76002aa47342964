"""Arguments that the layer refuses: the message names the argument, and nothing is written before."""

from __future__ import annotations

import math
import re

import pytest
import torch

from course_kernels import runtime
from course_kernels.moe import Activation, Function, Routing
from moe_layers import DEVICE, Layer, make

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


class Group:
    """Stands for an object that a user passes as ``ep`` by mistake."""

    num_experts = 5


def sized(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


# x (7, 24), gate_up (5, 80, 24), down (5, 24, 40), weights (7, 3)
WRONG = {
    "x is 3-D": (dict(x=sized(1, 7, 24)), "x must be 2-D, (T, H), got shape (1, 7, 24): pass x.flatten(0, -2)"),
    "x is float64": (dict(x=sized(7, 24, dtype=torch.float64)), "x must have a dtype of"),
    "x is of another dtype": (dict(x=sized(7, 24, dtype=torch.float16)), "gate_up must have the dtype of x"),
    "down is of another dtype": (dict(down=sized(5, 24, 40).half()), "down must have the dtype of x"),
    "gate_up is 2-D": (dict(gate_up=sized(80, 24)), "gate_up must be 3-D"),
    "gate_up is transposed": (dict(gate_up=sized(5, 24, 80)), "Its second extent is H: pass gate_up.mT"),
    "gate_up has other columns": (dict(gate_up=sized(5, 80, 25)), "gate_up must have shape (E, N, H) with H = 24"),
    "down is transposed": (dict(down=sized(5, 40, 24)), "Its last extent is H: pass down.mT"),
    "down has other rows": (dict(down=sized(5, 23, 40)), "down must have shape (E, H, I) with H = 24"),
    "down has other experts": (dict(down=sized(4, 24, 40)), "down must have 5 experts"),
    "gate_up lacks up": (dict(gate_up=sized(5, 40, 24)), "two rows, of gate and up, for each of down's I = 40"),
    "weights are of integers": (dict(weights=sized(7, 3, dtype=torch.int64)), "top_k_weights must have a floating"),
    "weights of other tokens": (dict(weights=sized(6, 3)), "top_k_weights must have a row for each of the 7 tokens"),
    "weights of other choices": (dict(weights=sized(7, 2)), "top_k_weights must have the shape of top_k_index"),
    "a bias of other columns": (dict(gate_up_bias=sized(5, 40)), "gate_up_bias must have shape (5, 80)"),
    "a bias of other experts": (dict(down_bias=sized(4, 24)), "down_bias must have shape (5, 24)"),
    "a bias in float64": (dict(down_bias=sized(5, 24).double()), "must have dtype torch.float32, got torch.float64"),
    "a bias in float16": (dict(gate_up_bias=sized(5, 80).half()), "must have dtype torch.float32, got torch.float16"),
    "x is no tensor": (dict(x=[1.0]), "x must be a torch.Tensor, got list"),
    "down is sparse": (dict(down=sized(5, 24, 40).to_sparse()), "down must be a dense (strided) tensor"),
    "a bias is no tensor": (dict(gate_up_bias=1.0), "gate_up_bias must be a torch.Tensor, got float"),
    "weights elsewhere": (dict(weights=torch.zeros(7, 3, device="meta")), "top_k_weights must be on the device of x"),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "message"), WRONG.values(), ids=WRONG)
def test_tensors(changed, message):
    made = make()
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        Layer(made.tensors | changed, made.ids)()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (None, "top_k_index must be a torch.Tensor where no routing is given, got None"),
        (torch.zeros(7, 3), "top_k_index must be torch.int32 or torch.int64, got torch.float32"),
        (torch.zeros(21, dtype=torch.int64), "top_k_index must be 2-D, (tokens, k), got shape (21,)"),
        (torch.zeros(7, 3, dtype=torch.int64, device="meta"), "top_k_index must be on the device of x"),
        (torch.zeros(7, 4, dtype=torch.int64), "top_k_weights must have the shape of top_k_index, (7, 4)"),
    ],
)
def test_ids(ids, message):
    made = make()
    ids = ids.to(DEVICE) if isinstance(ids, torch.Tensor) and not ids.is_meta else ids
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        Layer(made.tensors, ids)()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(activation="swish"), "activation must be one of"),
        (dict(activation=3), "activation must be a name or an Activation, got int"),
        (dict(activation=Activation(Function.SILU, limit=-1.0)), "activation must have a limit above 0"),
        (dict(activation=Activation(Function.SILU, gated=False, shift=1.0)), "activation must have a shift of 0"),
        (dict(activation=Activation(Function.SILU, alpha="1")), "activation must have a number for alpha"),
        (dict(activation=Activation(9)), "activation must have a Function"),
        (dict(activation=Activation(True)), "activation must have a Function"),
        (dict(activation=Activation(Function.SILU, alpha=True)), "activation must have a number for alpha, got True"),
        (dict(activation=Activation(Function.SILU, alpha=math.nan)), "activation must have a finite alpha, got nan"),
        (dict(activation=Activation(Function.SILU, limit=math.inf)), "activation must have a finite limit, got inf"),
        (dict(activation=Activation(Function.SILU, shift=-math.inf)), "activation must have a finite shift, got -inf"),
        (dict(activation=Activation(Function.GELU, alpha=1.702)), "an alpha of 1 where its function is GELU"),
        (dict(activation=Activation(Function.RELU, False, 0.5)), "an alpha of 1 where its function is RELU, got 0.5"),
        (dict(activation="relu2"), "one row, without a gate, for each of down's I = 40"),
        (dict(weights_on="both"), "weights_on must be one of ('output', 'input'), got 'both'"),
        (dict(backend="numpy"), "backend must be one of"),
        (dict(concatenated=1), "concatenated must be True or False, got 1"),
        (dict(num_sms=0), "num_sms must be"),
        (dict(ep=2), "ep must be an ExpertParallel or None, got int"),
        (dict(ep=Group()), "ep must be an ExpertParallel or None, got Group"),
        (dict(ep=type("DeviceMesh", (), {})()), "got DeviceMesh: pass ExpertParallel of that DeviceMesh"),
    ],
)
def test_names_and_flags(options, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        make()(**options)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="says what a CPU lacks")
def test_a_kernel_that_the_cpu_lacks_is_refused_without_an_argument_of_another_function():
    with pytest.raises(ValueError, match=r"backend='cute' needs a GPU of .*, and operands are on cpu"):
        make()(backend="cute")


def test_a_routing_of_something_else():
    made = make()
    ids, made.ids = made.ids, None
    for routing, message in (
        (tuple(Routing.of(ids, 5)), "routing must be a Routing, from Routing.of, got tuple"),
        (
            Routing.of(ids[:6], 5),
            "routing must be of the tokens and choices of top_k_weights, (T, k) = (7, 3), got (6, 3)",
        ),
        (Routing.of(ids.reshape(3, 7), 5), "(T, k) = (7, 3), got (3, 7)"),  # as many choices, of other tokens
        (Routing.of(ids.reshape(21, 1), 5), "(T, k) = (7, 3), got (21, 1)"),
        (Routing.of(ids, 5)._replace(rows=torch.zeros(7, dtype=torch.int32)), "(T, k) = (7, 3), got (7,)"),
        (Routing.of(ids, 4), "routing must be of 5 experts, got 4"),
        (Routing(*(each.to("meta") for each in Routing.of(ids, 5))), "routing must be on the device of x"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            made(routing=routing)


def test_main_grads():
    made = make().leaves()
    gate_up, down = (torch.ones(made.tensors[n].shape, device=DEVICE) for n in ("gate_up", "down"))
    frozen = make().leaves("x", "down")
    whole = torch.ones(5 * 80 * 24, device=DEVICE)
    overlapping = whole.view(5, 80, 24), whole[: 5 * 24 * 40].view(5, 24, 40)
    for layer, main_grads, message in (
        (made, gate_up, "main_grads must be a pair, of gate_up and of down, got Tensor"),
        (made, (gate_up,), "main_grads must be a pair, of gate_up and of down, got a tuple of 1"),
        (made, [gate_up, down, down], "main_grads must be a pair, of gate_up and of down, got a list of 3"),
        (made, (None, down.bfloat16()), "main_grads[1] must be torch.float32, got torch.bfloat16"),
        (made, (down, None), "main_grads[0] must have the shape of gate_up, (5, 80, 24), got (5, 24, 40)"),
        (made, (gate_up.to("meta"), None), "main_grads[0] must be on the device of gate_up"),
        (made, (gate_up.expand(5, 80, 24)[:1].expand(5, 80, 24), None), "main_grads[0] has elements that share memory"),
        (made, (gate_up.clone().requires_grad_(), None), "main_grads[0] requires a gradient"),
        (made, (made.tensors["gate_up"].detach(), None), "main_grads[0] shares memory with gate_up"),
        (made, overlapping, "main_grads[0] shares memory with main_grads[1]"),
        (frozen, (gate_up, None), "main_grads[0] must be None where gate_up requires no gradient"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            layer(main_grads=main_grads)
    assert all((each == 1).all() for each in (gate_up, down, whole))


def test_dtensors_are_refused(monkeypatch):
    """A stand-in: a real one needs processes."""
    from course_kernels import contexts
    from course_kernels.moe import checks

    made = make(bias=True)
    local, spread = (
        "must be a local tensor, from to_local(), got a DTensor",
        "is a DTensor: ep must be the ExpertParallel",
    )
    said = dict(x=f"x {local}", weights=f"top_k_weights {local}")
    said |= {name: f"{name} {spread}" for name in ("gate_up", "down", "gate_up_bias", "down_bias")}
    for name, message in said.items():
        for module in (contexts, checks):
            monkeypatch.setattr(module, "is_sharded", lambda tensor, name=name: tensor is made.tensors[name])
        with pytest.raises(TypeError, match=re.escape(message)):
            made()
