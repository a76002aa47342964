"""group_gemm under torch.func, in forward mode, with batched gradients, as operands without memory, in a profile."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

from course_kernels import GroupGemmPlan, group_gemm, runtime
from course_kernels.testing import Problem, make_operands

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

METHODS = ("auto", "round_robin")
DEVICE = runtime.device()
PROBLEMS = [Problem(2, 2, 3), Problem(1, 2, 1)]


@pytest.fixture
def operands():
    """Group_A and group_B, small whole numbers: every order of summation gives the same."""
    return make_operands(PROBLEMS, torch.float32, 3, device=DEVICE)


def multiply(method):
    """Ours and torch's, of the same signature."""
    return (lambda A, B: group_gemm(A, B, method=method)), (lambda A, B: [a @ b for a, b in zip(A, B)])


def penalty(function, group_B):
    """A function of the matrices A whose second derivative is not zero."""
    return lambda *group_A: sum((c**3).sum() for c in function(list(group_A), group_B))


def same(ours, theirs):
    leaves = [torch.utils._pytree.tree_leaves(each) for each in (ours, theirs)]
    assert leaves[0], "nothing was compared"
    assert all(torch.equal(x, y) for x, y in zip(*leaves, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_jacobians_and_hessians(method, operands):
    """jacrev for every matrix of the list, and both nestings of the second derivative."""
    group_A, group_B = operands
    functions = multiply(method)
    same(*(torch.func.jacrev(lambda *A: f(list(A), group_B), argnums=(0, 1))(*group_A) for f in functions))  # noqa: B023
    losses = [penalty(function, group_B) for function in functions]
    for hessian in (torch.func.hessian, lambda f: torch.func.jacrev(torch.func.jacrev(f))):
        same(*(hessian(loss)(*group_A) for loss in losses))


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_products_and_of_gradients(method, operands):
    """Some operands with a batch, some without, at any dimension; and a vjp that runs after its transform ended."""
    group_A, group_B = operands
    stacks = [torch.stack([a, -a, 2 * a], dim) for a, dim in zip(group_A, (0, 2))]
    functions = multiply(method)
    for transform in (
        lambda f: lambda a, c: f([a, c], group_B),
        lambda f: torch.func.grad(lambda a, c: penalty(f, group_B)(a, c), argnums=(0, 1)),
        lambda f: lambda a, c: torch.func.vjp(lambda *A: f(list(A), group_B), a, c)[1](f([a, c], group_B)),
    ):
        same(*(torch.func.vmap(transform(f), in_dims=(0, 2))(*stacks) for f in functions))
        same(*(torch.func.vmap(transform(f), in_dims=(0, None))(stacks[0], group_A[1]) for f in functions))
    for f in functions:
        outs, backward = torch.func.vjp(lambda *A: f(list(A), group_B), *group_A)  # noqa: B023
        same(backward(outs), [c @ b.mT for c, b in zip(outs, group_B)])


@pytest.mark.parametrize("wanted", ["A and B", "A", "B"])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_upstream_gradients(method, wanted, operands):
    results = []
    for function in multiply(method):
        A, B = ([t.clone().requires_grad_(name in wanted) for t in group] for name, group in zip("AB", operands))
        outs = function(A, B)
        upstream = [torch.stack([c, 2 * c]).detach() for c in outs]
        leaves = [t for t in (*A, *B) if t.requires_grad]
        results.append(torch.autograd.grad(outs, leaves, upstream, is_grads_batched=True))
    same(*results)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_tangents(method, operands):
    """torch.autograd.functional, which batches as is_grads_batched does."""
    (a, *_), (b, *_) = operands
    options = dict(vectorize=True, strategy="forward-mode")
    same(*(torch.autograd.functional.jacobian(lambda a: f([a], [b])[0], a, **options) for f in multiply(method)))  # noqa: B023


def test_forward_mode_within_forward_mode(operands):
    (a, *_), (b, *_) = operands

    def twice(function):
        def inner(a):
            return torch.func.jvp(lambda a: (function([a], [b])[0] ** 3).sum(), (a,), (a,))[1]

        return torch.func.jvp(inner, (a,), (a,))

    ours, theirs = multiply("auto")
    same(twice(ours), twice(theirs))
    with pytest.raises(TypeError, match=r"method must be 'auto' for .* forward mode in forward mode"):
        twice(multiply("round_robin")[0])


@pytest.mark.parametrize("method", METHODS)
def test_forward_mode(method, operands):
    """Tangents of A, of B, of some matrices; the level of plain autograd and that of torch.func."""
    group_A, group_B = operands
    results = []
    for f in multiply(method):
        everything = torch.func.jvp(lambda *t: f(t[:2], t[2:]), (*group_A, *group_B), (*group_A, *group_B))  # noqa: B023
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(group_A[0], 3 * group_A[0])
            out, other = f([dual, group_A[1]], group_B)
            some = torch.autograd.forward_ad.unpack_dual(out).tangent
            tangent = torch.autograd.forward_ad.unpack_dual(other).tangent
            assert tangent is None or not tangent.any()
        results.append((*everything, some))
    same(*results)


@pytest.mark.parametrize("method", METHODS)
def test_the_tangent_is_rounded_once(method):
    """1 + 2⁻⁸ and 2⁻⁸: their sum is a bfloat16, and the first is not."""
    small = 2.0**-8
    a, b, tangent_a, tangent_b = (
        torch.tensor(values, device=DEVICE).bfloat16()
        for values in ([[1.0, 0.0]], [[1.0], [1.0]], [[1.0, small]], [[small], [0.0]])
    )
    _, (tangent,) = torch.func.jvp(lambda a, b: group_gemm([a], [b], method=method), (a, b), (tangent_a, tangent_b))
    assert tangent.dtype == torch.bfloat16
    assert tangent.item() == 1 + 2 * small


def test_out_is_refused_under_transforms(operands):
    group_A, group_B = operands
    out = [a @ b for a, b in zip(group_A, group_B)]
    with pytest.raises(RuntimeError, match=r"out must be None under torch\.func"):
        torch.func.vmap(lambda a: group_gemm([a], group_B[:1], out=out[:1])[0])(group_A[0][None])


def test_tensors_without_memory_are_multiplied_by_torch(operands):
    """A wrapper subclass, functionalize and its gradient, a traced program."""
    (a, _), (b, _) = operands
    pair = group_gemm([TwoTensor(a, 2 * a)], [TwoTensor(b, b)])[0]
    same((pair.a, pair.b), (a @ b, 2 * a @ b))
    ours, theirs = (penalty(function, [b]) for function in multiply("auto"))
    same(torch.func.functionalize(torch.func.grad(ours))(a), torch.func.grad(theirs)(a))
    same(torch.func.vmap(torch.func.functionalize(lambda a: group_gemm([a], [b])[0]))(a[None]), (a @ b)[None])
    traced = make_fx(lambda a: group_gemm([a], [b])[0])(a)
    same(traced(3 * a), 3 * a @ b)
    for call in (
        lambda: group_gemm([TwoTensor(a, a)], [TwoTensor(b, b)], method="round_robin"),
        lambda: torch.func.functionalize(lambda a: group_gemm([a], [b], method="round_robin"))(a),
        lambda: make_fx(lambda a: group_gemm([a], [b], method="round_robin")[0])(a),
    ):
        with pytest.raises(TypeError, match=r"method must be 'auto' for meta tensors, subclasses .*, functionalize"):
            call()


@pytest.mark.parametrize("method", METHODS)
def test_a_call_shows_in_a_profile(method, operands):
    group_A, group_B = operands
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        outs = group_gemm(group_A, group_B, method=method)
    assert "course_kernels::group_gemm" in [event.key for event in profile.key_averages()]
    same(outs, [a @ b for a, b in zip(group_A, group_B)])
    plan = GroupGemmPlan(group_A, group_B, method=method)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        plan.run()
    assert "course_kernels::GroupGemmPlan.run" in [event.key for event in profile.key_averages()]


def test_distributed_and_local_matrices_do_not_mix():
    distributed, tensors = torch.distributed, pytest.importorskip("torch.distributed.tensor")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
        a, b = torch.randn(4, 8), torch.randn(8, 6)
        whole, other = (tensors.DTensor.from_local(each, mesh, [tensors.Replicate()]) for each in (a, b))
        same([each.to_local() for each in group_gemm([whole], [other])], [a @ b])
        for mixed in (([whole], [b]), ([a], [other])):
            with pytest.raises(TypeError, match="group_A and group_B must be DTensors or local tensors, got both"):
                group_gemm(*mixed)
    finally:
        distributed.destroy_process_group()
