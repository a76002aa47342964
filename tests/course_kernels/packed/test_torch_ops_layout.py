"""Gradients of grouped_mm are stored as the operands are: a transposed parameter's is not transposed in memory."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_kernels import grouped_mm, runtime
from course_kernels.packed import torch_ops
from course_kernels.testing import integers, reference, strided_like
from packed_operands import DEVICE, MODES, shapes

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
SIDES = list(itertools.product(("row", "col"), repeat=2))


def parameters(mode, layouts, dtype=torch.float32, **extents):
    """Contiguous parameters of which the operands are views, the operands, and offs."""
    made, operands = [], []
    for i, (shape, layout) in enumerate(zip(shapes(mode, **extents), layouts)):
        shape = shape if layout == "row" else (*shape[:-2], shape[-1], shape[-2])
        made.append(integers(shape, dtype, i, device=DEVICE).requires_grad_())
        operands.append(made[-1] if layout == "row" else made[-1].mT)
    return made, operands, None if mode == "batch" else torch.tensor((5, 5, 17), dtype=torch.int32, device=DEVICE)


def exact_gradients(parameters, layouts, offs, grad):
    copies = [each.detach().double().requires_grad_() for each in parameters]
    a, b = (each if layout == "row" else each.mT for each, layout in zip(copies, layouts))
    return torch.autograd.grad(reference.grouped_mm(a, b, offs), copies, grad.double())


@pytest.mark.parametrize("layouts", SIDES, ids="-".join)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_gets_the_products_own_memory(monkeypatch, backend, mode, layouts):
    made, (a, b), offs = parameters(mode, layouts)
    out = grouped_mm(a, b, offs=offs, backend=backend)
    grad = integers(out.shape, out.dtype, 9, device=DEVICE)
    addresses, genuine = set(), torch_ops.execute

    def note(*given):
        result = genuine(*given)
        assert result.is_contiguous(), "kernels write rows"
        addresses.add(result.data_ptr())  # not the tensor: autograd copies what somebody else holds
        return result

    monkeypatch.setattr(torch_ops, "execute", note)
    out.backward(grad)
    for name, parameter, exact in zip("ab", made, exact_gradients(made, layouts, offs, grad)):
        assert parameter.grad.stride() == parameter.stride(), name
        assert parameter.grad.data_ptr() in addresses, f"{name}'s gradient was copied"
        assert torch.equal(parameter.grad, exact.float())


@pytest.mark.parametrize("layouts", SIDES[1:], ids="-".join)
@pytest.mark.parametrize("mode", MODES)
def test_compiled_and_functional_gradients_have_the_same_strides(mode, layouts):
    torch._dynamo.reset()
    made, operands, offs = parameters(mode, layouts)

    def loss(a, b):
        return grouped_mm(a, b, offs=offs).square().sum()

    def of_operands(a, b):
        return torch.autograd.grad(loss(a, b), (a, b))

    eager = of_operands(*operands)
    loss(*operands).backward()
    kept = [each.grad for each in made]
    for each in made:
        each.grad = None
    compiled = torch.compile(
        lambda x, y: loss(*(z if layout == "row" else z.mT for z, layout in zip((x, y), layouts))),
        fullgraph=True,
        backend="aot_eager",
    )
    compiled(*made).backward()
    functional = torch.func.grad(loss, argnums=(0, 1))(*operands)
    for parameter, operand, first, wanted, other in zip(made, operands, eager, kept, functional):
        assert first.stride() == other.stride() == operand.stride()
        assert torch.equal(first, other)
        assert parameter.grad.stride() == wanted.stride() == parameter.stride()
        assert torch.equal(parameter.grad, wanted)
    torch._dynamo.reset()


@pytest.mark.parametrize("extents", [dict(M=1), dict(N=1), dict(K=1), dict(M=1, N=1, K=1), dict(total=1)], ids=str)
@pytest.mark.parametrize("layouts", SIDES, ids="-".join)
@pytest.mark.parametrize("mode", MODES)
def test_extents_of_one_have_ambiguous_strides(mode, layouts, extents):
    made, (a, b), offs = parameters(mode, layouts, **extents)
    offs = None if offs is None else offs.clamp(max=extents.get("total", 20))
    out = grouped_mm(a, b, offs=offs)
    out.backward(torch.ones_like(out))
    for parameter, exact in zip(made, exact_gradients(made, layouts, offs, torch.ones_like(out))):
        assert parameter.grad.stride() == parameter.stride()
        assert torch.equal(parameter.grad, exact.float())


@pytest.mark.parametrize("strides", ["expanded", "every_other", "padded", "transposed"])
@pytest.mark.parametrize("mode", MODES)
def test_other_strides_are_right_and_have_no_gaps(mode, strides):
    """An expanded operand, or one whose strides are both larger than 1, gets its gradient row by row."""
    operands = [strided_like(integers(shape, torch.float32, i, device=DEVICE), strides).requires_grad_()
                for i, shape in enumerate(shapes(mode))]  # fmt: skip
    offs = None if mode == "batch" else torch.tensor((5, 5, 17), dtype=torch.int32, device=DEVICE)
    out = grouped_mm(*operands, offs=offs)
    grads = torch.autograd.grad(out, operands, torch.ones_like(out))
    for grad, exact in zip(grads, exact_gradients(operands, ("row", "row"), offs, torch.ones_like(out))):
        assert (grad.mT if strides == "transposed" else grad).is_contiguous()
        assert torch.equal(grad, exact.float())


def test_gradients_of_gradients_of_a_transposed_parameter():
    made, _, offs = parameters("m", ("row", "col"))

    def penalty(multiply, leaves):
        a, b = leaves[0], leaves[1].mT
        first = torch.autograd.grad((multiply(a, b) ** 2).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum((each * each).sum() for each in first), leaves)

    small = [(each.detach() / 4).requires_grad_() for each in made]
    copies = [each.detach().double().requires_grad_() for each in small]
    got = penalty(lambda a, b: grouped_mm(a, b, offs=offs), small)
    wanted = penalty(lambda a, b: reference.grouped_mm(a, b, offs), copies)
    for one, other, parameter in zip(got, wanted, made):
        assert one.stride() == parameter.stride()
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4 * other.abs().max().item())


# ---- on a GPU


def peak_of_a_step(multiply, x, weight, offs) -> int:
    """Bytes at the peak of a forward and a backward, above what was there before."""
    for _ in range(2):  # the first compiles
        weight.grad = x.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = multiply(x, weight.mT, offs=offs)
        out.backward(torch.ones_like(out))
        del out
        torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_a_training_step_needs_no_more_memory_than_torchs(backend):
    if not hasattr(torch.nn.functional, "grouped_mm") or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("torch multiplies group after group here")
    weight = torch.randn(32, 1536, 1024, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    x = torch.randn(4096, 1024, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    offs = torch.arange(128, 4097, 128, dtype=torch.int32, device="cuda")

    def ours(x, weight, offs):
        return grouped_mm(x, weight, offs=offs, backend=backend)

    theirs = peak_of_a_step(torch.nn.functional.grouped_mm, x, weight, offs)
    wanted = weight.grad
    assert peak_of_a_step(ours, x, weight, offs) <= theirs
    assert weight.grad.stride() == wanted.stride() == weight.stride()
    torch.testing.assert_close(weight.grad, wanted, rtol=2e-2, atol=2e-2 * wanted.abs().max().item())


@pytest.mark.gpu
def test_nothing_is_copied_in_a_backward():
    weight = torch.randn(8, 256, 512, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    x = torch.randn(1024, 512, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    offs = torch.arange(128, 1025, 128, dtype=torch.int32, device="cuda")
    grad = torch.randn(1024, 256, dtype=torch.bfloat16, device="cuda")
    for _ in range(2):
        weight.grad = x.grad = None
        out = grouped_mm(x, weight.mT, offs=offs)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            out.backward(grad)
    names = {event.key for event in profile.key_averages()}
    assert not names & {"aten::copy_", "aten::clone", "aten::contiguous"}, names
