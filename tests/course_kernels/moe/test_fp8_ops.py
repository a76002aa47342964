"""The layer in float8 amid torch's own machinery: operators, compiled and exported programs, FLOP counts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_kernels import moe_feed_forward, quantize_128x128, runtime
from course_kernels.moe import ACTIVATIONS, Routing
from course_kernels.moe.activations import encode
from moe_layers import DEVICE, NAMES, Layer, make, step

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
if not runtime.supports_fp8():
    pytest.skip("this GPU does not multiply float8_e4m3fn", allow_module_level=True)

backends = pytest.mark.parametrize("backend", ["torch", "triton"])
recipes = pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
OPS = torch.ops.course_kernels


def operands(backend, recipe, tokens=3, crossed=False):
    """The operator's arguments before its last."""
    made = make(tokens, 8, 16, 3, 2, bias=True)
    made = (made.crossed() if crossed else made).leaves()
    made.ids.remainder_(3)  # all here: rows of other ranks' choices are not written, and cannot be compared
    form = (encode(ACTIVATIONS["swiglu"]), False, False, backend, None, recipe)
    return (*(made.tensors.get(name) for name in NAMES), None, None, *Routing.of(made.ids, 3), *form)


@backends
@recipes
@pytest.mark.parametrize(("tokens", "crossed"), [(0, True), (3, False), (3, True)])
def test_opcheck(backend, recipe, tokens, crossed):
    arguments = operands(backend, recipe, tokens, crossed)
    torch.library.opcheck(OPS.moe_feed_forward_fp8, (*arguments, True))
    with torch.no_grad():
        out, pre = OPS.moe_feed_forward_fp8(*arguments, True)
        detached = [each.detach() if isinstance(each, torch.Tensor) else each for each in arguments]
        given = (torch.ones_like(out), *detached[:12], pre, *detached[12:])
        torch.library.opcheck(OPS.moe_feed_forward_fp8_backward, (*given, [True] * 6))


@backends
@recipes
def test_compiled_without_a_graph_break(backend, recipe):
    torch._dynamo.reset()

    def layer(ids, x, weights, **others):
        return moe_feed_forward(
            x * 2, top_k_index=ids, top_k_weights=weights, fp8_recipe=recipe, backend=backend, **others
        )

    made = make(7, 8, 16, bias=True)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for eager, other in zip(step(layer, made), step(compiled, made), strict=True):
        assert torch.equal(eager, other)
    torch._dynamo.reset()


def test_an_exported_program_holds_the_operator():
    made = make(7, 40, 24)
    (gate_up, first), (down, second) = (quantize_128x128(made.tensors[name]) for name in ("gate_up", "down"))

    class Model(torch.nn.Module):
        def forward(self, x, ids, weights):
            return moe_feed_forward(x, gate_up, down, ids, weights, gate_up_scale=first, down_scale=second)

    arguments = made.tensors["x"], made.ids, made.tensors["weights"]
    rows = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(Model(), arguments, dynamic_shapes=(rows, rows, rows))
    assert OPS.moe_feed_forward_fp8.default in {node.target for node in program.graph.nodes}
    assert torch.equal(program.module()(*arguments), Model()(*arguments))


@backends
def test_flops(backend):
    made = make(7, 24, 40, 5, 3, backend=backend)
    once, mine = 2 * 7 * 3 * 24 * 40 * 3, made.leaves()
    with FlopCounterMode(display=False) as counter:
        out = mine(fp8_recipe="rowwise")
    assert counter.get_total_flops() == once
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 2 * once


def test_gradients_of_gradients_and_transforms_are_refused():
    made = make().leaves()
    out = made(fp8_recipe="rowwise")
    with pytest.raises(RuntimeError, match="no gradients of gradients"):
        torch.autograd.grad(out.sum(), made.tensors["x"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"no rules for torch\.func"):
        torch.func.grad(lambda x: Layer(made.tensors | dict(x=x), made.ids)(fp8_recipe="rowwise").sum())(
            torch.ones(7, 24, device=DEVICE)
        )
