"""The layer with adapters amid torch's own machinery: operators, compiled and exported programs, FLOP counts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_kernels import moe_feed_forward, runtime
from course_kernels.moe import ACTIVATIONS, Lora, Routing
from course_kernels.moe.activations import encode
from moe_layers import ADAPTERS, NAMES, adapted, make, step

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

backends = pytest.mark.parametrize("backend", ["torch", "triton"])
OPS = torch.ops.course_kernels


def operands(backend, tokens=3, crossed=False):
    """The operator's arguments before its last."""
    made = adapted(make(tokens, 8, 16, 3, 2, bias=True), 4)
    made = (made.crossed() if crossed else made).leaves()
    made.ids.remainder_(3)  # all here: rows of other ranks' choices are not written, and cannot be compared
    tensors = (made.tensors.get(name) for name in (*NAMES, *ADAPTERS))
    form = (encode(ACTIVATIONS["swiglu"]), False, False, backend, None)
    return (*tensors, *Routing.of(made.ids, 3), [0.5, 2.0], *form)


@backends
@pytest.mark.parametrize("tokens", [0, 3])
def test_opcheck(backend, tokens):
    torch.library.opcheck(OPS.moe_feed_forward_lora, (*operands(backend, tokens), True))


@backends
@pytest.mark.parametrize("crossed", [False, True])
def test_opcheck_of_the_backward(backend, crossed):
    arguments = operands(backend, crossed=crossed)
    out, *kept = (each.detach() for each in OPS.moe_feed_forward_lora(*arguments, True))
    detached = [each.detach() if isinstance(each, torch.Tensor) else each for each in arguments]
    given = (torch.ones_like(out), *detached[:14], *kept, *detached[14:])
    with torch.no_grad():
        for needs in ([True] * 10, [True] + [False] * 5 + [True] * 4):
            torch.library.opcheck(OPS.moe_feed_forward_lora_backward, (*given, needs))


@backends
def test_compiled_without_a_graph_break(backend):
    def layer(ids, x, gate_up, down, weights, **factors):
        lora = Lora(**factors, scale=0.5)
        return moe_feed_forward(x * 2, gate_up, down, ids, weights, lora=lora, backend=backend)

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (7, 9):
        made = adapted(make(tokens, 8, 16))
        for eager, other in zip(step(layer, made), step(compiled, made), strict=True):
            assert torch.equal(eager, other)
    torch._dynamo.reset()


def test_an_exported_program_holds_the_operator():
    made = adapted(make())

    class Model(torch.nn.Module):
        def forward(self, x):
            given = {name: made.tensors[name] for name in ADAPTERS}
            operands = (made.tensors[name] for name in ("gate_up", "down"))
            return moe_feed_forward(x, *operands, made.ids, made.tensors["weights"], lora=Lora(**given))

    program = torch.export.export(Model(), (made.tensors["x"],))
    assert OPS.moe_feed_forward_lora.default in [node.target for node in program.graph.nodes]
    assert torch.equal(program.module()(made.tensors["x"]), made())


def test_flops():
    rows, base, thin = 7 * 3, 24 * 80 + 24 * 40, 8 * (24 + 80 + 40 + 24)
    mine = adapted(make(backend="triton")).leaves("x", "weights", *ADAPTERS)
    with FlopCounterMode(display=False) as counter:
        out = mine()
    assert counter.get_total_flops() == 2 * rows * (base + thin)
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 2 * rows * (base + 2 * thin), "no weight has a gradient"
