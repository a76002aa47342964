"""Gradients of the list API, to second order, against torch's own on float64 copies."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, group_gemm, runtime
from course_kernels.testing import Problem, assert_exact, integers, make_operands, strided_like

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

METHODS = ("auto", "naive", "round_robin", "tma")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SMALL = GemmConfig(32, 32, 32)
PROBLEMS = [Problem(33, 24, 40), Problem(8, 8, 8), Problem(1, 50, 17)]


def id_of(value):
    return str(value).removeprefix("torch.")


def operands(problems=PROBLEMS, dtype=torch.float16, strides="row", seed=0):
    """Leaves that require gradients."""
    groups = make_operands(problems, dtype, seed, strides=strides, device=runtime.device())
    return [[t.detach().requires_grad_() for t in group] for group in groups]


def upstream(outs, strides="row"):
    made = [integers(c.shape, c.dtype, 10 + i, device=c.device) for i, c in enumerate(outs)]
    return [strided_like(g, strides) for g in made]


def check(group_A, group_B, grads):
    for i, (a, b, g) in enumerate(zip(group_A, group_B, grads)):
        assert_exact(a.grad, g, b.detach().t(), what=f"gradient of A[{i}]")
        assert_exact(b.grad, a.detach().t(), g, what=f"gradient of B[{i}]")
        assert a.grad.dtype == a.dtype
        assert a.grad.shape == a.shape


@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_exact(method, dtype):
    group_A, group_B = operands(dtype=dtype)
    outs = group_gemm(group_A, group_B, method=method, config=SMALL)
    assert all(c.requires_grad for c in outs)
    grads = upstream(outs)
    torch.autograd.backward(outs, grads)
    check(group_A, group_B, grads)


@pytest.mark.parametrize("operand_strides", ["row", "col", "unaligned", "every_other"])
@pytest.mark.parametrize("grad_strides", ["row", "col", "unaligned", "every_other", "expanded"])
@pytest.mark.parametrize("method", ["round_robin", "tma"])
def test_strides_of_operands_and_upstream_gradients(method, operand_strides, grad_strides):
    group_A, group_B = operands(strides=operand_strides)
    outs = group_gemm(group_A, group_B, method=method, config=SMALL)
    grads = upstream(outs, grad_strides)
    torch.autograd.backward(outs, grads)
    check(group_A, group_B, grads)


@pytest.mark.parametrize("method", METHODS)
def test_sum_sends_back_an_expanded_scalar(method):
    group_A, group_B = operands()
    outs = group_gemm(group_A, group_B, method=method, config=SMALL)
    sum(c.sum() for c in outs).backward()
    check(group_A, group_B, [torch.ones_like(c) for c in outs])


@pytest.mark.parametrize("needed", ["A0", "B1", "A", "B", "A0 B2", "A1 A2 B0"])
@pytest.mark.parametrize("method", ["auto", "round_robin"])
def test_any_subset_of_the_operands(method, needed):
    group_A, group_B = operands()
    names = {f"{name}{i}": t for name, group in (("A", group_A), ("B", group_B)) for i, t in enumerate(group)}
    wanted = {name for name in names for part in needed.split() if name.startswith(part)}
    for name, t in names.items():
        t.requires_grad_(name in wanted)
    outs = group_gemm(group_A, group_B, method=method, config=SMALL)
    grads = upstream(outs)
    torch.autograd.backward(outs, grads)
    for name, t in names.items():
        i = int(name[1])
        if name not in wanted:
            assert t.grad is None
        elif name[0] == "A":
            assert_exact(t.grad, grads[i], group_B[i].detach().t(), what=name)
        else:
            assert_exact(t.grad, group_A[i].detach().t(), grads[i], what=name)


@pytest.mark.parametrize("method", ["auto", "round_robin"])
def test_unused_outputs_give_zero_gradients(method):
    group_A, group_B = operands()
    outs = group_gemm(group_A, group_B, method=method, config=SMALL)
    (g,) = upstream(outs[1:2])
    outs[1].backward(g)
    check(group_A, group_B, [torch.zeros_like(outs[0]), g, torch.zeros_like(outs[2])])


@pytest.mark.parametrize("method", METHODS)
def test_empty_problems(method):
    group_A, group_B = operands([Problem(0, 8, 16), Problem(8, 8, 0), Problem(16, 0, 8), Problem(17, 9, 33)])
    outs = group_gemm(group_A, group_B, method=method, config=SMALL)
    grads = upstream(outs)
    torch.autograd.backward(outs, grads)
    check(group_A, group_B, grads)
    assert torch.equal(group_B[0].grad, torch.zeros_like(group_B[0])), "no rows: a zero gradient, not none"


def test_operand_that_occurs_twice_collects_both_gradients():
    (a, *_), (b, *_) = operands([Problem(16, 16, 16)])
    first, second = group_gemm([a, a], [b, b], method="round_robin", config=SMALL)
    torch.autograd.backward([first, second], [torch.ones_like(first), torch.ones_like(first)])
    assert_exact(a.grad, torch.ones_like(first) * 2, b.detach().t())


def test_one_matrix_on_both_sides():
    a = integers((16, 16), device=runtime.device()).requires_grad_()
    (c,) = group_gemm([a], [a], method="round_robin", config=SMALL)
    c.backward(torch.ones_like(c))
    ones = torch.ones(16, 16, dtype=torch.float64, device=a.device)
    wide = a.detach().double()
    assert torch.equal(a.grad.double(), ones @ wide.t() + wide.t() @ ones)


@pytest.mark.parametrize("out_dtype", DTYPES, ids=id_of)
@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
def test_gradients_have_the_operands_type_whatever_the_results(dtype, out_dtype):
    group_A, group_B = operands(dtype=dtype)
    outs = group_gemm(group_A, group_B, method="round_robin", config=SMALL, out_dtype=out_dtype)
    grads = upstream(outs)
    torch.autograd.backward(outs, grads)
    check(group_A, group_B, [g.to(dtype) for g in grads])


@pytest.mark.parametrize("method", METHODS)
def test_second_order(method):
    """The gradient of a gradient's square, compared with torch's matmul on float64."""
    group_A, group_B = operands([Problem(9, 7, 5), Problem(4, 4, 8)], torch.float32)

    def penalty(multiply, group_A, group_B):
        outs = multiply(group_A, group_B)
        loss = sum((c * c).sum() for c in outs)
        first = torch.autograd.grad(loss, [*group_A, *group_B], create_graph=True)
        return torch.autograd.grad(sum((g * g).sum() for g in first), [*group_A, *group_B])

    wide = [[t.detach().double().requires_grad_() for t in group] for group in (group_A, group_B)]
    wanted = penalty(lambda A, B: [a @ b for a, b in zip(A, B)], *wide)
    got = penalty(lambda A, B: group_gemm(A, B, method=method, config=SMALL), group_A, group_B)
    for g, w in zip(got, wanted):
        torch.testing.assert_close(g.double(), w, rtol=1e-5, atol=1e-5 * w.abs().max().item())


@pytest.mark.parametrize("method", METHODS)
def test_random_float32_gradients_match_float64(method):
    generator = torch.Generator().manual_seed(5)
    shapes = [(12, 20), (20, 9), (33, 5), (5, 40)]
    tensors = [torch.randn(s, generator=generator).to(runtime.device()).requires_grad_() for s in shapes]
    wide = [t.detach().double().requires_grad_() for t in tensors]
    outs = group_gemm(tensors[::2], tensors[1::2], method=method, config=SMALL)
    sum(c.sin().sum() for c in outs).backward()
    sum((a @ b).sin().sum() for a, b in zip(wide[::2], wide[1::2])).backward()
    for t, w in zip(tensors, wide):
        torch.testing.assert_close(t.grad.double(), w.grad, rtol=1e-4, atol=1e-4)


def test_no_graph_under_no_grad():
    group_A, group_B = operands()
    with torch.no_grad():
        outs = group_gemm(group_A, group_B, method="round_robin", config=SMALL)
    assert not any(c.requires_grad for c in outs)


def test_operands_changed_before_backward_are_noticed():
    group_A, group_B = operands()
    outs = group_gemm(group_A, group_B, method="round_robin", config=SMALL)
    with torch.no_grad():
        group_A[0].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outs[0].sum().backward()


def test_backward_uses_the_method_of_forward(monkeypatch):
    from course_kernels.lists import launch

    used = []
    genuine = launch.prepare

    def spy(group_A, group_B, out, settings, *rest):
        used.append((settings.method, settings.config, len(group_A)))
        return genuine(group_A, group_B, out, settings, *rest)

    monkeypatch.setattr(launch, "prepare", spy)
    group_A, group_B = operands()
    group_B[0].requires_grad_(False)
    outs = group_gemm(group_A, group_B, method="round_robin", config=SMALL)
    torch.autograd.backward(outs, upstream(outs))
    assert used == [("round_robin", SMALL, 3), ("round_robin", SMALL, 3), ("round_robin", SMALL, 2)]
