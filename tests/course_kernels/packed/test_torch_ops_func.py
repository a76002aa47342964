"""grouped_mm and group_sums under torch.func, in forward mode, with batched gradients, for subclasses, in a profile."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from course_kernels import grouped_mm, runtime, scaled_grouped_mm
from course_kernels.packed.group_sums import group_sums
from course_kernels.testing import integers
from packed_operands import DEVICE, FP8, MODES, ROW, call, operands, scales

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
OPS = torch.ops.course_kernels


def by_torch(mode, offs):
    """The product in torch's own operations, which have every derivative. Reads the ends on the host."""
    ends = [] if offs is None else offs.tolist()
    parts = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends)]

    def multiply(a, b, bias=None):
        if mode == "batch":
            return a @ b + (0 if bias is None else bias[:, None])
        rows = {"m": a.shape[0], "n": b.shape[-1], "k": 0}[mode]
        if mode == "m":
            made = [a[part] @ b[g] + (0 if bias is None else bias[g]) for g, part in enumerate(parts)]
            return torch.cat([*made, a.new_zeros(rows - ends[-1], b.shape[-1])])
        if mode == "n":
            made = [a[g] @ b[:, part] for g, part in enumerate(parts)]
            return torch.cat([*made, b.new_zeros(a.shape[1], rows - ends[-1])], 1)
        made = [a[:, part] @ b[part] + (0 if bias is None else bias[g]) for g, part in enumerate(parts)]
        return torch.stack(made)

    return multiply


def both(mode, backend, offs):
    """Our function and torch's, each with the arguments (mat_a, mat_b, bias)."""
    return (lambda a, b, bias=None: call(a, b, offs, bias, backend=backend)), by_torch(mode, offs)


def same(ours, theirs):
    leaves = [torch.utils._pytree.tree_leaves(each) for each in (ours, theirs)]
    assert leaves[0], "nothing was compared"
    assert all(torch.equal(x, y) for x, y in zip(*leaves, strict=True))


def small(mode):
    """Small operands, because Jacobians are large: two groups with rows, one without."""
    cut = {"m": ((4, 2), (3, 2, 3)), "n": ((3, 2, 2), (2, 4)), "k": ((2, 4), (4, 2)), "batch": ((3, 2, 2), (3, 2, 2))}
    a, b = (integers(shape, torch.float32, i, device=DEVICE) for i, shape in enumerate(cut[mode]))
    return a, b, None if mode == "batch" else torch.tensor([1, 1, 3], dtype=torch.int32, device=DEVICE)


# ---- torch.func


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_functional_gradients(mode, backend):
    a, b, offs, bias = operands(mode, bias=True)
    argnums = (0, 1) if bias is None else (0, 1, 2)

    def loss(a, b, bias):
        return call(a, b, offs, bias, backend=backend).square().sum()

    got = torch.func.grad(loss, argnums)(a, b, bias)
    leaves = [t.clone().requires_grad_() for t in (a, b, bias) if t is not None]
    loss(*leaves, *[None] * (3 - len(leaves))).backward()
    for g, leaf in zip(got, leaves, strict=True):
        assert torch.equal(g, leaf.grad)


def test_functional_gradient_of_a_gradient():
    a, b, offs, _ = operands("m")

    def cube(a):
        return (grouped_mm(a, b, offs=offs) ** 3).sum()

    got = torch.func.grad(lambda a: torch.func.grad(cube)(a).sum())(a)
    leaf = a.clone().requires_grad_()
    (first,) = torch.autograd.grad(cube(leaf), leaf, create_graph=True)
    (wanted,) = torch.autograd.grad(first.sum(), leaf)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("mode", MODES)
def test_vmap(mode):
    a, b, offs, _ = operands(mode)
    stack = torch.stack([a, 2 * a, -a], dim=1)
    got = torch.func.vmap(lambda a: call(a, b, offs, None), in_dims=1)(stack)
    assert torch.equal(got, torch.stack([call(x, b, offs, None) for x in (a, 2 * a, -a)]))
    per_sample = torch.func.vmap(torch.func.grad(lambda a: call(a, b, offs, None).square().sum()), in_dims=1)(stack)
    whole = torch.func.grad(lambda s: torch.func.vmap(lambda a: call(a, b, offs, None), in_dims=1)(s).square().sum())
    assert torch.equal(per_sample, whole(stack).movedim(1, 0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_vjp_runs_after_its_transform_has_ended(backend, mode):
    """The transform wraps the group ends, like all tensors made inside of it; then it wraps all operands."""
    a, b, offs, bias = operands(mode, bias=True)
    present = [t for t in (a, b, bias) if t is not None]

    def multiply(*tensors):
        inside = None if offs is None else offs + 0
        return call(*tensors[:2], inside, tensors[2] if len(tensors) > 2 else None, backend=backend)

    out, backward = torch.func.vjp(multiply, *present)
    same(backward(out), torch.func.vjp(by_torch(mode, offs), *present)[1](out))


@pytest.mark.parametrize("mode", MODES)
def test_jacobians_and_hessians(mode):
    """jacrev, jacfwd, and both nestings of the second derivative."""
    a, b, offs = small(mode)
    functions = both(mode, "torch", offs)
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        same(*(jacobian(f, argnums=(0, 1))(a, b, None) for f in functions))
    losses = [lambda a, f=f: (f(a, b, None) ** 3).sum() for f in functions]
    for hessian in (torch.func.hessian, lambda f: torch.func.jacrev(torch.func.jacrev(f))):
        same(*(hessian(loss)(a) for loss in losses))


def test_hessian_of_the_kernels():
    a, b, offs = small("m")
    same(*(torch.func.hessian(lambda a: (f(a, b, None) ** 3).sum())(a) for f in both("m", "triton", offs)))  # noqa: B023


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_mode(backend, mode):
    """Every subset of the operands with a tangent, in torch.func and in a level of plain autograd."""
    a, b, offs, bias = operands(mode, bias=True)
    ours, theirs = both(mode, backend, offs)
    present = (a, b) if bias is None else (a, b, bias)
    same(*(torch.func.jvp(f, present, present) for f in (ours, theirs)))
    ad = torch.autograd.forward_ad
    for changed in range(len(present)):
        tangents = []
        for f in (ours, theirs):
            with ad.dual_level():
                duals = [ad.make_dual(t, 2 * t) if i == changed else t for i, t in enumerate(present)]
                tangents.append(ad.unpack_dual(f(*duals)).tangent)
        same(*tangents)


def test_forward_mode_over_a_backward():
    """The tangent of an upstream gradient is not lost, nor that of a bias's gradient."""
    a, b, offs, bias = operands("m", bias=True)
    ad, found = torch.autograd.forward_ad, []
    for f in both("m", "triton", offs):
        leaves = [t.clone().requires_grad_() for t in (a, b, bias)]
        out = f(*leaves)
        with ad.dual_level():
            dual = ad.make_dual(out.detach(), 2 * out.detach())
            found.append([ad.unpack_dual(g).tangent for g in torch.autograd.grad(out, leaves, dual)])
    same(*found)


def test_the_tangent_is_rounded_once():
    """1 + 2⁻⁸ and 2⁻⁸: their sum is a bfloat16, and the first is not."""
    tiny = 2.0**-8
    a, b, tangent_a, tangent_b = (
        torch.tensor(values, device=DEVICE).bfloat16()
        for values in ([[[1.0, 0.0]]], [[[1.0], [1.0]]], [[[1.0, tiny]]], [[[tiny], [0.0]]])
    )
    _, tangent = torch.func.jvp(grouped_mm, (a, b), (tangent_a, tangent_b))
    assert tangent.dtype == torch.bfloat16
    assert tangent.item() == 1 + 2 * tiny


def test_forward_mode_is_refused_where_it_is_not_supported():
    a, b, offs, _ = operands("m")
    ad = torch.autograd.forward_ad
    with ad.dual_level():
        dual, out = ad.make_dual(a, a), torch.zeros(20, 10, device=DEVICE)
        with pytest.raises(RuntimeError, match="grouped_mm with out or main_grad has no forward-mode derivative"):
            grouped_mm(dual, b, offs=offs, out=out)
        with pytest.raises(RuntimeError, match="grouped_mm with out or main_grad has no forward-mode derivative"):
            grouped_mm(dual, b, offs=offs, main_grad=torch.zeros_like(b))
        with pytest.raises(RuntimeError, match="group_sums with out has no forward-mode derivative"):
            group_sums(dual, offs, out=out[:3, :7])
        grouped_mm(a, b, offs=offs, out=out)  # within the level, but not dual


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_of_tangents(mode):
    """torch.autograd.functional, which batches as is_grads_batched does."""
    a, b, offs = small(mode)
    options = dict(vectorize=True, strategy="forward-mode")
    same(*(torch.autograd.functional.jacobian(f, (a, b), **options) for f in both(mode, "triton", offs)))
    if mode == "m":

        def sums(a):
            return torch.stack([a[:1].sum(0), a[1:1].sum(0), a[1:3].sum(0)])

        ours = torch.autograd.functional.jacobian(lambda a: group_sums(a, offs), a, **options)
        same(ours, torch.autograd.functional.jacobian(sums, a))


def test_out_is_refused_under_torch_func():
    a, b, offs, _ = operands("m")
    for transform in (torch.func.grad, torch.func.functionalize):
        with pytest.raises(RuntimeError, match=r"out must be None under torch\.func"):
            transform(lambda a: grouped_mm(a, b, offs=offs, out=torch.zeros(20, 10, device=DEVICE)).sum())(a)
        with pytest.raises(RuntimeError, match=r"out must be None under torch\.func"):
            transform(lambda a: group_sums(a, offs, out=torch.zeros(3, 7, device=DEVICE)).sum())(a)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_of_upstream_gradients(backend, mode):
    a, b, offs, bias = operands(mode, bias=True)
    found = []
    for f in both(mode, backend, offs):
        leaves = [t.clone().requires_grad_() for t in (a, b, bias) if t is not None]
        out = f(*leaves, *[None] * (3 - len(leaves)))
        upstream = torch.stack([out, 2 * out]).detach()
        found.append(torch.autograd.grad(out, leaves, upstream, is_grads_batched=True))
    same(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_functionalize(backend):
    """Alone, around and inside of gradients, around vmap; and vmap around it."""
    a, b, offs, bias = operands("m", bias=True)
    transform = torch.func.functionalize

    def loss(f):
        return lambda a, bias: (f(a, b, bias) ** 2).sum()

    ours, theirs = both("m", backend, offs)
    same(transform(ours)(a, b, bias), theirs(a, b, bias))
    wanted = torch.func.grad(loss(theirs), (0, 1))(a, bias)
    same(transform(torch.func.grad(loss(ours), (0, 1)))(a, bias), wanted)
    same(torch.func.grad(transform(loss(ours)), (0, 1))(a, bias), wanted)
    same(transform(torch.func.vmap(torch.func.grad(loss(ours), (0, 1)), (0, None)))(a[None], bias)[0][0], wanted[0])
    same(torch.func.jvp(transform(ours), (a, b), (a, b)), torch.func.jvp(theirs, (a, b), (a, b)))
    same(torch.func.vmap(transform(lambda a: ours(a, b)))(a[None]), ours(a, b)[None])


@pytest.mark.parametrize("tracing", ["real", "symbolic"])
def test_traced_by_make_fx(tracing):
    """The product and its gradient, as operators."""
    a, b, offs, _ = operands("m")
    gradient = torch.func.grad(lambda a, b, offs: grouped_mm(a, b, offs=offs).square().sum(), (0, 1))
    graph = make_fx(gradient, tracing_mode=tracing)(a, b, offs)
    assert [node.target for node in graph.graph.nodes].count(OPS.grouped_mm.default) == 3
    same(graph(2 * a, b, offs), gradient(2 * a, b, offs))


# ---- __torch_function__


def test_subclasses_modes_and_foreign_objects_see_one_call():
    """Like torch's own function: the class of the result, one call by name, objects that are not tensors."""
    a, b, offs, _ = operands("m")
    seen = []

    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Stranger:
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return function, len(args)

    out = grouped_mm(a.as_subclass(Named), b, offs=offs)
    assert type(out) is Named
    same(out.as_subclass(torch.Tensor), grouped_mm(a, b, offs=offs))
    with Mode():
        grouped_mm(a, b, offs=offs)
    assert seen == [grouped_mm, grouped_mm]
    assert grouped_mm(a, Stranger(), offs=offs) == (grouped_mm, 2)
    quantized = a.to(FP8), Stranger(), scales("m")[0], ROW, scales("m")[1], ROW
    assert scaled_grouped_mm(*quantized, offs=offs) == (scaled_grouped_mm, 13)


def test_symbolic_trace_holds_the_function():
    a, b, offs, _ = operands("m")
    traced = torch.fx.symbolic_trace(lambda a, b, offs: grouped_mm(a, b, offs=offs, tail="zero"))
    assert grouped_mm in [node.target for node in traced.graph.nodes]
    same(traced(a, b, offs), grouped_mm(a, b, offs=offs))


# ---- a profile


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_show_in_a_profile_under_their_names(backend):
    a, b, offs, bias = operands("m", grad=True, bias=True)
    out = torch.empty(20, 10, device=DEVICE)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        product = grouped_mm(a, b, offs=offs, bias=bias, backend=backend)
        product.backward(torch.ones_like(product))
        grouped_mm(a.detach(), b.detach(), offs=offs, out=out, backend=backend)
        group_sums(a.detach(), offs, backend=backend)
    calls = {event.key: event.count for event in profile.key_averages()}
    names = [f"course_kernels::{name}" for name in ("grouped_mm", "grouped_mm_out", "group_sums")]
    assert [calls.get(name) for name in names] == [3, 1, 2]
    shapes = [event.input_shapes for event in profile.events() if event.name == names[0]]
    assert [list(a.shape), list(b.shape)] == shapes[0][:2]
    same(product, grouped_mm(a, b, offs=offs, bias=bias, backend=backend))
