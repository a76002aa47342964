"""The layer amid torch's own machinery: operators, compiled and exported programs, FLOP counts."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from course_kernels import moe_feed_forward, runtime
from course_kernels.moe import ACTIVATIONS, Activation, Function, Routing
from course_kernels.moe.activations import encode
from moe_layers import DEVICE, NAMES, Layer, adapted, assert_near, make, step

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
backends = pytest.mark.parametrize("backend", BACKENDS)
OPS = torch.ops.course_kernels


def operands(backend, bias=True, tokens=3, crossed=False):
    """The operator's arguments before its last."""
    made = make(tokens, 8, 16, 3, 2, bias=bias)
    made = (made.crossed() if crossed else made).leaves()
    made.ids.remainder_(3)  # all here: rows of other ranks' choices are not written, and cannot be compared
    form = (encode(ACTIVATIONS["swiglu"]), False, False, backend, None)
    return (*(made.tensors.get(name) for name in NAMES), *Routing.of(made.ids, 3), *form)


@backends
@pytest.mark.parametrize("bias", [False, True])
def test_opcheck(backend, bias):
    torch.library.opcheck(OPS.moe_feed_forward, (*operands(backend, bias), True))


@backends
def test_opcheck_without_tokens(backend):
    torch.library.opcheck(OPS.moe_feed_forward, (*operands(backend, tokens=0), True))


@backends
@pytest.mark.parametrize("crossed", [False, True])
def test_opcheck_of_the_backward(backend, crossed):
    arguments = operands(backend, crossed=crossed)
    out, pre = OPS.moe_feed_forward(*arguments, True)
    with torch.no_grad():
        detached = [each.detach() if isinstance(each, torch.Tensor) else each for each in arguments]
        given = (torch.ones_like(out), *detached[:6], pre.detach(), *detached[6:])
        for needs in ([True] * 6, [False, True, False, False, False, False]):
            torch.library.opcheck(OPS.moe_feed_forward_backward, (*given, needs))


@backends
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_opcheck_of_the_routing(backend, dtype):
    torch.library.opcheck(OPS.moe_routing, (make(5).ids.to(dtype), 5, backend))


# ---- torch.compile, torch.export


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@backends
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_without_a_graph_break_for_any_number_of_tokens(backend):
    frames = []

    def counting(graph, example):
        frames.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    def layer(ids, x, weights, **others):
        top = weights / weights.sum(1, keepdim=True)
        return moe_feed_forward(x * 2, top_k_index=ids, top_k_weights=top, backend=backend, **others)

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counting)
    for tokens in (7, 9, 11, 13):
        made = make(tokens, 8, 16, bias=True)
        for eager, other in zip(step(layer, made), step(compiled, made), strict=True):
            assert torch.equal(eager, other)
    assert len(frames) <= 2, "one program serves all numbers of tokens, and perhaps another one the first"


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_for_any_number_of_an_activation():
    """Dynamo has symbols for numbers that change: an alpha, a limit, a shift, and an adapter's scale."""
    made = adapted(make(6, 8, 16))

    def layer(alpha, limit, shift, scale):
        return made(activation=Activation(Function.SILU, True, alpha, limit, shift), scale=scale)

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    for numbers in ((1.5, 3.0, 0.5, 0.25), (1.25, 2.0, 0.75, 2.0)):
        assert torch.equal(compiled(*numbers), layer(*numbers))
    for numbers in ((math.inf, 3.0, 0.5, 1.0), (1.5, math.nan, 0.5, 1.0), (1.5, 3.0, 0.5, -math.inf)):
        with pytest.raises(Exception, match="finite"):
            compiled(*numbers)


@backends
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_for_tokens_that_another_tensor_counts(backend):
    made = make(9, 8, 16, experts=48, top_k=1)
    x, ids, weights = made.tensors["x"], made.ids, made.tensors["weights"]

    def layer(chosen):
        given = made.tensors | dict(x=x[chosen], weights=weights[chosen])
        return Layer(given, ids[chosen])(backend=backend)

    chosen = torch.arange(9, device=DEVICE) % 3 == 1
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        assert_near(compiled(chosen), layer(chosen).double(), torch.float32)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_with_autocast_and_a_routing():
    def layer(ids, x, weights, **others):
        with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
            routing = Routing.of(ids, 5)
            return moe_feed_forward(x, top_k_index=None, top_k_weights=weights, routing=routing, **others)

    made = make(6, 8, 16)
    for eager, other in zip(
        step(layer, made), step(torch.compile(layer, fullgraph=True, backend="aot_eager"), made), strict=True
    ):
        assert torch.equal(eager, other)


class Model(torch.nn.Module):
    """A layer in a program."""

    def __init__(self, made):
        super().__init__()
        self.made = made

    def forward(self, x, ids, weights):
        return Layer(self.made.tensors | dict(x=x, weights=weights), ids, self.made.options)()


@backends
def test_an_exported_program_holds_the_operators(backend):
    made = make(backend=backend)
    rows = {0: torch.export.Dim.DYNAMIC}
    arguments = made.tensors["x"], made.ids, made.tensors["weights"]
    program = torch.export.export(Model(made), arguments, dynamic_shapes=(rows, rows, rows))
    held = [node.target for node in program.graph.nodes]
    assert {OPS.moe_feed_forward.default, OPS.moe_routing.default} <= set(held)
    longer = make(12, backend=backend)
    found = program.module()(longer.tensors["x"], longer.ids, longer.tensors["weights"])
    assert torch.equal(found, Model(made)(longer.tensors["x"], longer.ids, longer.tensors["weights"]))


def in_a_profiler(call):
    with torch.profiler.profile():
        return call()


def under_a_counter(call):
    with FlopCounterMode(display=False):
        return call()


def compiled_eagerly(call):
    return torch.compile(call, backend="eager", fullgraph=True)()


@pytest.mark.parametrize("context", [in_a_profiler, under_a_counter, compiled_eagerly])
@pytest.mark.parametrize("way", ["plain", "lora", "fp8"])
@pytest.mark.usefixtures("fresh_compiler")
def test_second_derivatives_of_the_operators_are_refused(context, way):
    """Without a word, they would be taken for zero."""
    if way == "fp8" and not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    made = (adapted(make()) if way == "lora" else make()).leaves("x")
    options = dict(fp8_recipe="rowwise") if way == "fp8" else {}
    out = context(lambda: made(**options))
    with pytest.raises(RuntimeError, match="no gradients of gradients"):
        torch.autograd.grad(out.sum(), made.tensors["x"], create_graph=True)
    torch.autograd.grad(out.sum(), made.tensors["x"])


# Saved exports hold calls of these. Another schema needs a new minor version, and a line in the changelog.
SCHEMAS = {
    "moe_routing": "(Tensor top_k_index, SymInt num_experts, str backend) -> (Tensor, Tensor, Tensor, Tensor)",
    "moe_feed_forward": "(Tensor x, Tensor gate_up, Tensor down, Tensor weights, Tensor? gate_up_bias, Tensor? "
    "down_bias, Tensor ends, Tensor tokens, Tensor choices, Tensor rows, str activation, bool interleaved, bool "
    "on_input, str backend, int? num_sms, bool keep) -> (Tensor, Tensor)",
}


@pytest.mark.parametrize(("name", "schema"), SCHEMAS.items(), ids=SCHEMAS)
def test_schemas_stay(name, schema):
    assert str(getattr(OPS, name).default._schema) == f"course_kernels::{name}{schema}"


# ---- FLOPs

T, H, I, K = 7, 24, 40, 3


@backends
@pytest.mark.parametrize("name", ["swiglu", "relu2"])
def test_flops_forward_and_backward(backend, name):
    made = make(T, H, I, 5, K, activation=name, backend=backend)
    once = 2 * T * K * H * I * (3 if ACTIVATIONS[name].gated else 2)
    mine = made.leaves()
    with FlopCounterMode(display=False) as counter:
        out = mine()
    assert counter.get_total_flops() == once
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 2 * once
    out = made.leaves()()
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 2 * once, "also where the forward ran without a counter"


@backends
@pytest.mark.parametrize("recipe", [None, "rowwise"])
def test_flops_where_gradients_are_collected(backend, recipe):
    """They are those of a step, and the same bits are added as without a counter."""
    made, found = make(T, H, I, 5, K, backend=backend), []
    for counting in (False, True):
        mine = made.leaves()
        main_grads = torch.ones_like(mine.tensors["gate_up"], dtype=torch.float32), None
        with FlopCounterMode(display=False) if counting else contextlib.nullcontext() as counter:
            mine(main_grads=main_grads, fp8_recipe=recipe).sum().backward()
        assert mine.tensors["gate_up"].grad is None
        found.append([main_grads[0], mine.tensors["x"].grad, mine.tensors["down"].grad])
    assert counter.get_total_flops() == 3 * 2 * T * K * H * I * 3
    assert all(map(torch.equal, *found))


def test_flops_of_what_is_asked_for():
    first, second = 2 * T * K * H * 2 * I, 2 * T * K * H * I
    for names, wanted in {
        ("x",): first + second, ("gate_up",): first + second, ("down",): 2 * second, ("weights",): second,
        ("x", "down"): first + 2 * second,
    }.items():  # fmt: skip
        out = make(T, H, I, 5, K, backend="triton").leaves(*names)()
        with FlopCounterMode(display=False) as counter:
            out.sum().backward()
        assert counter.get_total_flops() == wanted, names


# ---- operators and the plain way agree


@backends
def test_under_a_profiler_and_in_batches_of_gradients(backend):
    made = make(4, bias=True, backend=backend)
    plain, mine = made.leaves(), made.leaves()
    plain().sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        mine().sum().backward()
    assert "course_kernels::moe_feed_forward" in {event.key for event in profile.key_averages()}
    for one, other in zip(plain.gradients().values(), mine.gradients().values()):
        assert torch.equal(one, other)


def test_selective_checkpointing_may_keep_the_layer():
    """Its operator is what a policy sees: kept, it is not computed again."""
    made, calls = make(4, backend="torch").leaves(), []

    def policy(context, operator, *arguments, **options):
        if operator == OPS.moe_feed_forward.default:
            calls.append(context.is_recompute)
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    def block(x):
        return Layer(made.tensors | dict(x=x * 1), made.ids, made.options)().sin()

    def contexts():
        return create_selective_checkpoint_contexts(policy)

    checkpoint(block, made.tensors["x"], use_reentrant=False, context_fn=contexts).sum().backward()
    wanted = make(4, backend="torch").leaves()
    wanted().sin().sum().backward()
    for one, other in zip(wanted.gradients().values(), made.gradients().values()):
        assert torch.equal(one, other)
    assert False in calls


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_main_grads_run_between_graphs(backend):
    made = make(4, backend=backend)
    mine, grads = made.leaves(), [torch.ones(made.tensors[n].shape, device=DEVICE) for n in ("gate_up", "down")]

    def layer(x):
        return Layer(mine.tensors | dict(x=x * 1), mine.ids, mine.options)(main_grads=grads)

    torch.compile(layer, backend="aot_eager")(mine.tensors["x"]).sum().backward()
    assert all((each != 1).any() for each in grads)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"main_grads, .* between two graphs: call it without fullgraph=True"):
        torch.compile(layer, fullgraph=True, backend="aot_eager")(mine.tensors["x"])


def test_main_grads_are_refused_in_exports():
    made = make(4).leaves()
    grads = [torch.ones(made.tensors[n].shape, device=DEVICE) for n in ("gate_up", "down")]

    class Collecting(torch.nn.Module):
        def forward(self, x):
            return Layer(made.tensors | dict(x=x), made.ids)(main_grads=grads)

    with pytest.raises(Exception, match="main_grads"):
        torch.export.export(Collecting(), (made.tensors["x"],))
