"""The layer on the kernels, against float64: what the products and the steps between them add up to."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from course_kernels import runtime
from course_kernels.engine.plans import Known, find
from course_kernels.moe import ACTIVATIONS, Routing, layer
from course_kernels.moe.form import Arriving, Form, Operands
from course_kernels.testing import poisoned
from moe_layers import NAMES, assert_near, check, kept_bytes, make, oracle, routing_bytes

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

WAYS = ("fused", "split")
# Biases, rows of gate and up that take turns, and weights on the input, all of them in turn over the activations.
OPTIONS = itertools.cycle([(False, False, "output"), (True, True, "output"), (False, True, "input")])
CASES = [(name, *options) for name, options in zip(ACTIVATIONS, OPTIONS)]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """The Triton kernel that gathers and activates, and kernels of their own for these."""
    fused = request.param == "fused"
    monkeypatch.setattr(layer, "is_fused", lambda operands, form, *rest: fused and not form.on_input)
    return request.param


@pytest.fixture
def poison(monkeypatch):
    """Memory that nobody has written to is NaN."""
    genuine = torch.empty, torch.empty_like

    def spoil(made):
        return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(2**30)

    monkeypatch.setattr(torch, "empty", lambda *given, **options: spoil(genuine[0](*given, **options)))
    monkeypatch.setattr(torch, "empty_like", lambda *given, **options: spoil(genuine[1](*given, **options)))


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(("name", "bias", "takes_turns", "weights_on"), CASES)
def test_every_activation(way, name, bias, takes_turns, weights_on):
    options = dict(activation=name, concatenated=not takes_turns, weights_on=weights_on, backend="triton")
    check(make(bias=bias, **options))


@pytest.mark.usefixtures("poison", "way")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_dtype(dtype):
    check(make(dtype=dtype, bias=True, backend="triton"))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("given", [torch.float64, torch.float16], ids=str)
def test_the_gradient_of_weights_has_their_dtype(given):
    made = make(4, backend="triton")
    made.tensors["weights"] = made.tensors["weights"].to(given)
    mine = made.leaves()
    mine().sum().backward()
    assert mine.tensors["weights"].grad.dtype == given


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("shape", [(1, 16, 8, 1, 1), (3, 17, 5, 2, 2), (6, 33, 70, 6, 2)])
def test_odd_sizes(shape):
    check(make(*shape, backend="triton"))


def test_one_rounding_of_main_gradients_and_nothing_around_them(way):
    made = make(dtype=torch.bfloat16, backend="triton")
    wanted = made.leaves()
    wanted().sum().backward()
    grads, verify = {}, []
    for name in ("gate_up", "down"):
        grads[name], verified = poisoned(made.tensors[name].shape, torch.float32, device=made.ids.device)
        grads[name].fill_(512.0)
        verify.append(verified)
    mine = made.leaves()
    mine(main_grads=tuple(grads.values())).sum().backward()
    for each in verify:
        each()
    for name, grad in grads.items():
        assert mine.tensors[name].grad is None
        change = grad - 512.0
        assert (change - wanted.tensors[name].grad.float()).abs().max() <= 2e-2 * change.abs().max()
        assert (change != change.bfloat16().float()).any(), "it is added in float32"


def test_the_backward_keeps_x_the_argument_and_the_routing(way):
    made = make(dtype=torch.bfloat16, backend="triton").leaves()
    rows = made.ids.numel()
    argument, routing = rows * made.tensors["gate_up"].shape[1] * 2, routing_bytes(made)
    assert kept_bytes(made) == argument + routing


@pytest.mark.usefixtures("way")
def test_the_same_bits_every_time():
    made = make(40, dtype=torch.bfloat16, bias=True, backend="triton")
    first = made.leaves()
    first().sum().backward()
    again = made.leaves()
    again().sum().backward()
    for one, other in zip(first.gradients().values(), again.gradients().values()):
        assert torch.equal(one, other)


def test_which_way_is_taken(monkeypatch):
    """Weights on the input need rows of their own; the Triton kernel that is asked for gathers."""
    taken = []
    genuine = layer.is_fused
    monkeypatch.setattr(layer, "is_fused", lambda *given: taken.append(genuine(*given)) or taken[-1])
    for weights_on, fused in (("output", True), ("input", False)):
        taken.clear()
        make(2, weights_on=weights_on, backend="triton")()
        assert set(taken) == {fused}


@pytest.mark.parametrize("backend", ["auto", "triton"])
@pytest.mark.parametrize("descriptors, installed", [(False, False), (True, False), (True, True)])
def test_which_way_is_taken_on_a_gpu(monkeypatch, backend, descriptors, installed):
    """With few rows the Triton kernel gathers everywhere; with more, where plain products have no descriptors either,
    and the kernel in CuTe DSL where there is one that may be used."""
    monkeypatch.setattr(layer.runtime, "supports_descriptors", lambda device: descriptors)
    monkeypatch.setattr(layer.cute, "runs_on", lambda device: descriptors)
    monkeypatch.setattr(layer.cute, "installed", lambda: installed)
    x = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16)
    operands = Operands(x, torch.empty(4, 2, 2), None, None)
    form = Form(ACTIVATIONS["swiglu"], backend=backend)
    cutes = installed and backend == "auto"
    biased = operands._replace(gate_up_bias=torch.empty(4, 2))
    for keep in (False, True):
        assert layer.is_fused(operands, form, 4 * layer.FUSED_ROWS, keep)
        for each in (operands, biased):
            assert layer.is_fused(each, form, 4 * layer.FUSED_ROWS + 1, keep) == (cutes or not descriptors)
        assert layer.is_fused(operands, form, 1000, keep, adapted=True) != descriptors
        assert not layer.is_fused(operands, form._replace(on_input=True), 1, keep)


def test_which_way_gate_and_up_that_take_turns_go_on_hopper(monkeypatch):
    """The CuTe kernel reads their rows, stores no argument, and reads no columns that take turns."""
    monkeypatch.setattr(layer.runtime, "supports_descriptors", lambda device: True)
    monkeypatch.setattr(layer.cute, "runs_on", lambda device: True)
    monkeypatch.setattr(layer.cute, "installed", lambda: True)
    x = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16)
    rows = Operands(x, torch.empty(4, 6, 8), None, None, torch.empty(4, 6))
    columns = rows._replace(gate_up=torch.empty(4, 8, 6).mT)
    form = Form(ACTIVATIONS["swiglu_oai"], interleaved=True)
    assert [layer.is_fused(rows, form, 1000, keep) for keep in (False, True)] == [True, False]
    assert [layer.is_fused(columns, form, 1000, keep) for keep in (False, True)] == [False, False]
    assert all(layer.is_fused(each, form, 4 * layer.FUSED_ROWS, True) for each in (rows, columns))
    assert layer.is_fused(columns, form._replace(interleaved=False), 1000, True)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_gradients_of_weights_whose_kernel_gathers_rows_of_tokens(monkeypatch, columns, adds):
    """Of each product one operand is of tokens: of the second weight's the left one, of the first one's the right one;
    the other way round where columns of weights are contiguous. No rows are gathered before."""
    taken = []

    def find_offered(product, options, out, problem):
        asked = problem()
        wanted = "k", len(product.rows.index), out.shape, adds
        assert (asked.mode, asked.K, asked.out_shape, asked.accumulate) == wanted
        plan = SimpleNamespace(run=run)
        return Known(plan, out.device, "k", out.shape, out.dtype)

    def run(product, out):
        (a, b), rows, start = product[:2], product.rows, 0
        index = rows.index[: rows.offs[-1]].long()
        a, b = (a[:, index], b) if rows.operand == "a" else (a, b[index])
        for g, end in enumerate(rows.offs.tolist()):
            out[g] = a[:, start:end] @ b[start:end] + (out[g] if product.epilogue.accumulates else 0)
            start = end
        taken.append(rows.operand)

    def gather(x, *others):
        assert x.shape[1] == 1, "weights alone, no rows of tokens"
        return genuine(x, *others)

    genuine = layer.steps.gather
    monkeypatch.setattr(layer, "find_offered", find_offered)
    monkeypatch.setattr(layer.steps, "gather", gather)
    made = make(backend="triton")
    for name in ("gate_up", "down") if columns else ():
        made.tensors[name] = made.tensors[name].mT.contiguous().mT
    if not adds:
        check(made)
    else:
        exact, mine = made.exact(), made.leaves()
        grads = [torch.full_like(made.tensors[name], 2.0) for name in ("gate_up", "down")]
        before = [each._version for each in grads]
        mine(main_grads=grads).sum().backward()
        oracle(exact).sum().backward()
        for name, grad, version in zip(("gate_up", "down"), grads, before):
            assert_near(grad - 2, exact.tensors[name].grad, torch.float32, name)
            assert grad._version > version
    assert taken == (["b", "a"] if columns else ["a", "b"])


@pytest.mark.usefixtures("poison")
def test_rows_are_gathered_before_for_weights_on_the_input(monkeypatch):
    monkeypatch.setattr(layer, "find_offered", None)
    check(make(weights_on="input", backend="triton"))


class Late:
    """A tensor that is NaN until it arrives, and what happened to it."""

    def __init__(self, tensor):
        self.tensor, self.there, self.events = torch.full_like(tensor, torch.nan), tensor, []
        self.arriving = Arriving(lambda columns: ("pieces for", columns), self.settle)

    def settle(self):
        self.events.append("settled")
        self.tensor.copy_(self.there)

    def product_waits(self, product, options, out, problem):
        """As ``find_offered`` where a kernel takes rows that are arriving."""

        def run(product, out):
            self.events.append("product")
            self.tensor.copy_(self.there)
            whole = product._replace(rows=product.rows._replace(pieces=None))
            find(whole, options, out, problem).run(whole, out)

        return Known(SimpleNamespace(run=run), out.device, "m", out.shape, out.dtype)


@pytest.mark.parametrize("waits", [False, True], ids=["stream", "product"])
@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("options", [{}, dict(weights_on="input")], ids=["fused", "apart"])
def test_rows_on_their_way_are_waited_for_once_and_before_they_are_read(monkeypatch, options, backend, waits):
    made = make(backend=backend, **options)
    x, gate_up, down, weights = (made.tensors[name] for name in NAMES[:4])
    operands, grad = Operands(x, gate_up, down, weights.float()), torch.randn_like(x)
    form = Form(ACTIVATIONS["swiglu"], on_input="weights_on" in options, backend=backend)
    routing = Routing.of(made.ids, len(gate_up), backend=backend)
    wanted, pre = layer.forward(operands, routing, form, keep=True)
    for_forward = Late(x)
    by_product = waits and backend == "triton" and not options
    expected = (["product"] if by_product else []) + ["settled"]
    with monkeypatch.context() as patched:
        if waits:
            patched.setattr(layer, "find_offered", for_forward.product_waits)
        late = operands._replace(x=for_forward.tensor)
        found, _ = layer.forward(late, routing, form, keep=True, arriving=for_forward.arriving)
    assert torch.equal(found, wanted)
    assert for_forward.events == expected
    for needs in ((True,) * 4 + (False,) * 2, (False,) * 6):
        wanted = layer.backward(grad, operands, pre, routing, form, needs)
        late = Late(grad)
        with monkeypatch.context() as patched:
            if waits:
                patched.setattr(layer, "find_offered", _only_of_rows(late.product_waits, layer.find_offered))
            found = layer.backward(late.tensor, operands, pre, routing, form, needs, arriving=late.arriving)
        for one, other in zip(found, wanted):
            assert one is other is None or torch.equal(one, other)
        assert late.events == (expected if any(needs) else ["settled"])


def _only_of_rows(waiting, genuine):
    """``waiting`` for products of rows that are arriving, ``genuine`` for weights' gradients."""
    return lambda product, *others: (genuine if product.rows.pieces is None else waiting)(product, *others)
