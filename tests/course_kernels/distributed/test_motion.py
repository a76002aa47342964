from __future__ import annotations

import contextlib
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from course_kernels import moe_feed_forward, runtime
from course_kernels.distributed import ExpertParallel, motion
from course_kernels.distributed.motion import combine, dispatch, settled, through
from course_kernels.distributed.plan import Arrived
from course_kernels.distributed.transports import symmetric
from course_kernels.distributed.transports.symmetric import Symmetric
from course_kernels.engine import plans
from course_kernels.engine.plans import PlanCache
from course_kernels.moe import checks, layer, layer_plan, steps
from course_kernels.moe.activations import activation_of
from course_kernels.moe.form import Form, Operands
from course_kernels.moe.parallel import Kernels
from launchless import counted, launch_nothing
from moe_layers import NAMES, make


class Doubling:
    """A transport that notes what it is asked for."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def double(first, second, plan):
            given = [each for each in (first, second) if each is not None]
            self.calls.append((name, len(given), plan))
            doubled = [each if each is None else each * 2 for each in (first, second)]
            return Arrived(*doubled, plan) if name == "scatter" else tuple(doubled)

        return double


def test_each_half_is_the_derivative_of_the_other():
    way, x, weights = Doubling(), torch.ones(2, 3, requires_grad=True), torch.ones(2, 1, requires_grad=True)
    rows, sent, _ = dispatch(x, weights, way, "plan")
    combine(rows * sent, way, "plan").sum().backward()
    assert [each[:2] for each in way.calls] == [("scatter", 2), ("collect", 1), ("scatter", 1), ("collect", 2)]
    assert {plan for *_, plan in way.calls} == {"plan"}
    assert x.grad.unique().item() == 2 * 2 * 2
    assert weights.grad.unique().item() == 3 * 2 * 2 * 2


def test_only_what_is_asked_for_travels_back():
    way, x = Doubling(), torch.ones(2, 3, requires_grad=True)
    dispatch(x, torch.ones(2, 1), way, None)[0].sum().backward()
    assert [each[:2] for each in way.calls] == [("scatter", 2), ("collect", 1)]


def test_a_pending_result_is_waited_for():
    class Pending:
        def trigger_wait(self):
            return "there"

    assert settled(Pending()) == "there"
    plain = torch.ones(1)
    assert settled(plain) is plain


# ---- the whole way, in one rank's memory


class Alone(Symmetric):
    """A group of one rank. Who begins to use regions of the memory finds them poisoned: what was there is gone."""

    def __init__(self, experts: int, tokens: int):
        super().__init__(SimpleNamespace(size=lambda: 1, rank=lambda: 0), experts, tokens)
        self.uses = []

    def _agree(self, likes, device):
        pass

    def _allocate(self, size, device):
        self.memories = [torch.empty(size, dtype=torch.uint8, device=device)]
        self.addresses = torch.tensor([self.memories[0].data_ptr()], dtype=torch.int64, device=device)

    def _milliseconds(self):
        return 1

    def _barrier(self):
        pass

    def _open(self, **likes):
        self.uses.append([*likes])
        regions = super()._open(**likes)
        for region in regions:
            region.rows.view(torch.uint8).fill_(255)  # NaN, and ids of no expert
        return regions


class Copying(Alone):
    """Rank 0 of two whose tokens are copied. Rank 1 has none, and the test gives its signals."""

    def __init__(self, experts: int, tokens: int):
        super().__init__(experts, tokens)
        self.group, self.taken = SimpleNamespace(size=lambda: 2, rank=lambda: 0), []

    def copies(self, x, top_k):
        return True

    def _allocate(self, size, device):
        self.memories = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self.addresses = torch.tensor([each.data_ptr() for each in self.memories], dtype=torch.int64, device=device)
        self.arrived = torch.ones(2, dtype=torch.int32, device=device)

    def _signal(self, rank):
        pass

    def _await(self, step):
        self.taken.append(step)


def through_and_apart(made, needs=NAMES, planned=True):
    """The layer's result and gradients, each way, and the uses of the memory."""
    found = []
    for whole in (True, False):
        mine = made.leaves(*needs) if needs else made
        given = dict(mine.tensors)
        x, gate_up, down, weights = (given.pop(name) for name in NAMES[:4])
        transport = Alone(gate_up.shape[0], x.shape[0] + 2)  # rows that no token fills
        journey = transport.plan(mine.ids) if planned else mine.ids
        on_input = made.options.get("weights_on") == "input"
        form = Form(activation_of(made.options.get("activation", "swiglu")), on_input=on_input, backend="triton")
        if whole:
            operands = Operands(x, gate_up, down, weights, *(given.get(name) for name in NAMES[4:]))
            out = through(Kernels(operands, form, None, made.options.get("main_grads")), transport, journey)
        else:
            rows, sent, plan = dispatch(x, weights, transport, journey)
            y = moe_feed_forward(rows, gate_up, down, None, sent, routing=plan.routing, **given, **made.options)
            out = combine(y, transport, plan)
        if needs:
            out.backward(torch.linspace(-1, 1, out.numel(), device=out.device).reshape(out.shape))
        found.append((out.detach(), mine.gradients(), transport.uses))
    return found


OPTIONS = [
    {}, dict(bias=True), dict(weights_on="input", activation="relu2"), dict(bias=True, weights_on="input"),
]  # fmt: skip


@pytest.mark.parametrize("needs", [(), NAMES, ("x", "down"), ("weights",), ("gate_up",)], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_whole_way_is_its_halves_and_the_layer(options, needs):
    made = make(backend="triton", **options)
    (out, grads, uses), (wanted, wanted_grads, wanted_uses) = through_and_apart(made, needs, planned=False)
    assert torch.equal(out, wanted)
    for name, grad in wanted_grads.items():
        assert (grad is None) == (grads[name] is None), name
        assert grad is None or torch.equal(grad, grads[name]), name
    assert uses == wanted_uses, "another rank may take the other way"


@pytest.mark.parametrize("needs", [(), NAMES], ids=str)
def test_a_plan_made_before_gives_the_same_bits_in_one_more_use(needs):
    made = make(backend="triton")
    for (out, grads, uses), (wanted, wanted_grads, fewer) in zip(
        through_and_apart(made, needs), through_and_apart(made, needs, planned=False)
    ):
        assert torch.equal(out, wanted)
        assert all(torch.equal(grad, grads[name]) for name, grad in wanted_grads.items() if grad is not None)
        first, *others = fewer
        assert first == ["x", "top_k_weights", "top_k_index"]
        assert uses == [["top_k_index"], first[:2], *others]


def test_main_gradients_of_the_whole_way():
    made, found = make(backend="triton"), []
    for _ in range(2):
        held = [torch.ones_like(made.tensors[name]) for name in ("gate_up", "down")]
        made.options["main_grads"] = held
        found.append(held)
        (_, grads, _), _ = through_and_apart(made)
        assert grads["gate_up"] is grads["down"] is None
        assert not torch.equal(held[0], torch.ones_like(held[0]))
    assert all(map(torch.equal, *found))


def alone(made, most=9):
    """Experts of a group of one rank."""
    ep = object.__new__(ExpertParallel)
    experts = made.tensors["gate_up"].shape[0]
    ep.transport, ep.plans, ep.chunks, ep.rank = Alone(experts, most), PlanCache(), 1, 0
    ep.group, ep.num_experts, ep.num_local_experts = ep.transport.group, experts, experts
    return ep


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("needs", [(), NAMES, ("down",)], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_warm_call_is_the_first_one_again(options, needs, fused, monkeypatch):
    """It makes no check, and its products are not looked for."""
    monkeypatch.setattr(layer, "FUSED_ROWS", 16 if fused else 0)
    monkeypatch.setattr(runtime, "supports_descriptors", lambda device: not fused)
    made, found = make(backend="triton", **options), []
    made.options["ep"] = ep = alone(made)
    for call in range(3):
        if call == 1:
            monkeypatch.setattr(checks, "check_operands", None)
            monkeypatch.setattr(plans, "choose", None)
        if call == 2 and fused and "weights_on" not in options:
            monkeypatch.setattr(layer_plan, "layer", None)
        mine = made.leaves(*needs) if needs else made
        out = mine()
        if needs:
            out.backward(torch.linspace(-1, 1, out.numel(), device=out.device).reshape(out.shape))
        found.append([out.detach(), *(each for each in mine.gradients().values() if each is not None)])
    assert all(map(torch.equal, found[0] + found[0], found[1] + found[2]))
    assert len(found[0]) == 1 + len([name for name in needs if made.tensors.get(name) is not None])
    assert len(ep.plans) == 1
    monkeypatch.undo()
    del made.options["ep"]
    assert torch.allclose(found[0][0], made().detach(), atol=1e-5)


def test_a_warm_call_makes_few_calls(monkeypatch):
    """Before there were plans: 306 and 433."""
    launch_nothing(monkeypatch)
    monkeypatch.setattr(layer, "FUSED_ROWS", 64)  # as on a GPU whose products' kernels gather and activate
    monkeypatch.setattr(symmetric, "total", lambda rows, routing, tokens: steps.combine(rows, routing, tokens))
    made = make(64, 64, 32, 8, 8, dtype=torch.bfloat16, backend="triton")
    made.options["ep"] = alone(made, 64)
    for _ in range(3):
        made()
    found = counted(made)
    assert found.python <= 185, found
    assert found.c <= 195, found


@pytest.mark.parametrize(
    "change", [dict(main_grads=True), dict(fp8_recipe="rowwise"), dict(chunks=2), dict(routing=True)], ids=str
)
def test_calls_that_have_no_plan(change):
    made = make(backend="triton")
    made.options["ep"] = ep = alone(made)
    if "chunks" in change:
        ep.chunks = 2
    if "fp8_recipe" in change:
        made.options |= change
    if "routing" in change:
        made.options["routing"] = ep.plan(made.ids)
    if "main_grads" in change:
        made = made.leaves()
        made.options["main_grads"] = [torch.zeros_like(made.tensors[name]) for name in ("gate_up", "down")]
    made()
    assert not len(ep.plans)


def test_plans_do_not_keep_the_memory():
    made = make(backend="triton")
    made.options["ep"] = ep = alone(made)
    made(), made()
    memory = weakref.ref(ep.transport)
    made.options.clear()
    del ep
    gc.collect()
    assert memory() is None


def test_memory_of_inference_serves_training():
    made = make(backend="triton")
    made.options["ep"] = alone(made)
    with torch.inference_mode():
        wanted = made()
    out = made.leaves()()
    assert torch.equal(out, wanted)
    out.sum().backward()


class Broken(Exception):
    pass


def breaking(function, after):
    """The function, which raises before or after its work."""

    def broken(*given, **options):
        if after:
            function(*given, **options)
        raise Broken

    return broken


PLACES = ["Symmetric._planned", "layer.forward", "layer.backward"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("place", [None, *PLACES])
def test_a_call_takes_every_signal_once_also_where_it_raises(place, needs, after, monkeypatch):
    """A signal that is left, or taken twice, would be that of another call."""
    made = make(backend="triton")
    made = made.leaves(*NAMES) if needs else made
    transport, form = Copying(5, made.ids.shape[0]), Form(activation_of("swiglu"), backend="triton")
    kernels = Kernels(Operands(*(made.tensors[name] for name in NAMES[:4])), form)
    if place is not None:
        owner, name = place.split(".")
        owner = {"Symmetric": Symmetric, "layer": motion.layer}[owner]
        monkeypatch.setattr(owner, name, breaking(getattr(owner, name), after))
    raises = place is not None and (needs or place != "layer.backward")
    with pytest.raises(Broken) if raises else contextlib.nullcontext():
        out = through(kernels, transport, made.ids)
        if needs:
            out.sum().backward()
    backward = needs and place in (None, "layer.backward")
    assert transport.taken == [1] * (2 if backward else 1)


def test_the_first_error_is_raised_where_signals_do_not_come(monkeypatch):
    made, transport = make(backend="triton"), Copying(5, 7)
    form = Form(activation_of("swiglu"), backend="triton")
    monkeypatch.setattr(motion.layer, "forward", breaking(motion.layer.forward, False))
    monkeypatch.setattr(transport, "_await", lambda step: 1 / 0)
    with pytest.raises(Broken):
        through(Kernels(Operands(*(made.tensors[name] for name in NAMES[:4])), form), transport, made.ids)


def test_gradients_of_gradients_are_refused():
    made = make(backend="triton").leaves()
    transport = Alone(5, 7)
    operands = Operands(*(made.tensors[name] for name in NAMES[:4]))
    form = Form(activation_of("swiglu"), backend="triton")
    out = through(Kernels(operands, form), transport, transport.plan(made.ids))
    with pytest.raises(RuntimeError, match="no gradients of gradients"):
        torch.autograd.grad(out.sum(), operands.x, create_graph=True)


@pytest.mark.parametrize(
    "ranks, local, top_k, most, dtype, copied",
    [
        (2, 64, 8, 16384, torch.bfloat16, True), (4, 32, 8, 16384, torch.bfloat16, True),  # Qwen3: 0.997, 0.91
        (8, 16, 8, 16384, torch.bfloat16, False), (2, 4, 2, 16384, torch.bfloat16, False),  # 0.67; Mixtral: 0.79
        (2, 64, 8, 4096, torch.bfloat16, False), (2, 64, 8, 4096, torch.float32, True),  # 16 and 32 MiB
        (1, 64, 8, 16384, torch.bfloat16, False), (2, 1, 3, 16384, torch.bfloat16, True),  # one rank; k above E
    ],
)  # fmt: skip
def test_rows_are_copied_where_nearly_all_tokens_go_everywhere(ranks, local, top_k, most, dtype, copied):
    transport = Symmetric(SimpleNamespace(size=lambda: ranks), local, most)
    assert transport.copies(torch.empty(3, 2048, dtype=dtype, device="meta"), top_k) is copied
