"""Operators with derivatives of their own: as functions of torch's operators, in every transform."""

from __future__ import annotations

import pytest
import torch

from course_kernels import group_sums, grouped_mm, runtime
from packed_operands import DEVICE, operands

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

OPS = torch.ops.course_kernels
TRANSFORMS = {
    "backward": lambda f: lambda *t: torch.autograd.grad(f(*t).square().sum(), [x for x in t if x.requires_grad]),
    "grad": lambda f: torch.func.grad(lambda *t: f(*t).square().sum()),
    "jvp": lambda f: lambda *t: torch.func.jvp(f, t, t),
    "vmap": lambda f: lambda *t: torch.func.vmap(f)(*(torch.stack([x, 2 * x]) for x in t)),
    "grad in functionalize": lambda f: torch.func.functionalize(torch.func.grad(lambda *t: f(*t).square().sum())),
    "grad of grad": lambda f: torch.func.grad(lambda *t: torch.func.grad(lambda *t: cube(f(*t)))(*t).sum()),
    "hessian": lambda f: torch.func.hessian(lambda *t: cube(f(*t))),
    "jvp of grad": lambda f: lambda *t: torch.func.jvp(torch.func.grad(lambda *t: cube(f(*t))), t, t),
    "grad of jvp": lambda f: torch.func.grad(lambda *t: torch.func.jvp(lambda *t: cube(f(*t)), t, t)[1]),
    "forward in forward": lambda f: (
        lambda *t: torch.func.jvp(lambda *t: torch.func.jvp(lambda *t: cube(f(*t)), t, t)[1], t, t)
    ),
    "forward in grad in forward": lambda f: (
        lambda *t: torch.func.jvp(torch.func.grad(lambda *t: torch.func.jvp(lambda *t: cube(f(*t)), t, t)[1]), t, t)
    ),
    "backward of grad": lambda f: lambda *t: backward_of(torch.func.grad(lambda *t: cube(f(*t))), t),
    "functionalize in vmap": lambda f: lambda *t: torch.func.vmap(torch.func.functionalize(f))(*(x[None] for x in t)),
}


NESTED = [name for name in TRANSFORMS if " of " in name or name == "hessian"]


def cube(x):
    return (x * x * x).sum()


def backward_of(function, tensors):
    leaves = [x.detach().requires_grad_() for x in tensors]
    return torch.autograd.grad(function(*leaves).sum(), leaves)


def product_by_torch(a, b):
    return torch.cat([a[:5] @ b[0], a[5:17] @ b[2], a.new_zeros(3, b.shape[-1])])


def sums_by_torch(a):
    return torch.stack([a[:5].sum(0), a[5:5].sum(0), a[5:17].sum(0)])


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("which", ["grouped_mm", "group_sums"])
def test_every_derivative(which, transform):
    """The operator, the function that calls it, and torch's own operations have the same derivatives."""
    a, b, offs, _ = operands("m", grad=transform == "backward")
    if which == "grouped_mm":
        tensors, theirs = (a, b), product_by_torch
        ours = (
            (lambda a, b: OPS.grouped_mm(a, b, offs, None, None, False, "auto", "")),
            (lambda a, b: grouped_mm(a, b, offs=offs)),
        )
    else:
        tensors, theirs = (a,), sums_by_torch
        ours = (lambda a: OPS.group_sums(a, offs, "auto")), (lambda a: group_sums(a, offs))
    wanted = torch.utils._pytree.tree_leaves(TRANSFORMS[transform](theirs)(*tensors))
    for function in ours:
        got = torch.utils._pytree.tree_leaves(TRANSFORMS[transform](function)(*tensors))
        assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))


@pytest.mark.parametrize("transform", NESTED)
@pytest.mark.parametrize("which", ["grouped_mm", "group_sums"])
def test_compiled(which, transform):
    """The compiler sees the operators, and no function around them."""
    a, b, offs, _ = operands("m")
    tensors, ours, theirs = (a, b), (lambda a, b: grouped_mm(a, b, offs=offs)), product_by_torch
    if which == "group_sums":
        tensors, ours, theirs = (a,), (lambda a: group_sums(a, offs)), sums_by_torch
    torch._dynamo.reset()
    wanted = torch.utils._pytree.tree_leaves(TRANSFORMS[transform](theirs)(*tensors))
    compiled = torch.compile(TRANSFORMS[transform](ours), backend="aot_eager")
    got = torch.utils._pytree.tree_leaves(compiled(*tensors))
    assert all(torch.allclose(x, y, rtol=1e-5, atol=1e-4) for x, y in zip(got, wanted, strict=True))
    assert all(y.any() for y in wanted)


def test_a_node_of_a_graph_has_the_operators_name():
    a, b, offs, _ = operands("m", grad=True)
    out = OPS.grouped_mm(a, b, offs, None, None, False, "torch", "")
    assert "grouped_mm" in out.grad_fn.name()
    with torch.no_grad():
        assert OPS.grouped_mm(a, b, offs, None, None, False, "torch", "").grad_fn is None
    assert not OPS.grouped_mm(a.detach(), b.detach(), offs, None, None, False, "torch", "").requires_grad
    assert out.device.type == DEVICE.type
