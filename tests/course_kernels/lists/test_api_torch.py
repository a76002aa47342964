"""group_gemm amid torch's own machinery: autocast, compiled callers, torch.func, lazy views, tensors without memory."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

import forked
from course_kernels import GemmConfig, GroupGemmPlan, group_gemm, runtime
from course_kernels.testing import Problem, assert_exact, integers, make_operands

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

METHODS = ("auto", "naive", "round_robin", "tma")
DEVICE = runtime.device()
PROBLEMS = [Problem(33, 24, 40), Problem(1, 50, 17)]


def operands(dtype=torch.float32, grad=False):
    groups = make_operands(PROBLEMS, dtype, 3, device=DEVICE)
    return [[t.requires_grad_(grad) for t in group] for group in groups]


# ---- autocast


@pytest.mark.parametrize("method", METHODS)
def test_autocast_casts_operands_and_their_gradients_come_back_in_their_dtype(method):
    group_A, group_B = operands(grad=True)
    group_B = [b.detach().half().requires_grad_() for b in group_B]  # a mixture, as layers under autocast leave it
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        outs = group_gemm(group_A, group_B, method=method)
    for c, a, b in zip(outs, group_A, group_B):
        assert c.dtype == torch.bfloat16
        assert_exact(c, a.detach(), b.detach())
    torch.autograd.backward(outs, [torch.ones_like(c) for c in outs])
    for c, a, b in zip(outs, group_A, group_B):
        assert (a.grad.dtype, b.grad.dtype) == (torch.float32, torch.float16)
        assert_exact(a.grad, torch.ones_like(c).float(), b.detach().float().t())
        assert_exact(b.grad, a.detach().t(), torch.ones_like(c).float())


@pytest.mark.parametrize("method", METHODS)
def test_autocast_rounds_nothing_that_it_does_not_cast(method):
    # 257 needs 9 bits: bfloat16 would make it 256.
    a = torch.full((16, 16), 257.0, device=DEVICE)
    b = torch.eye(16, device=DEVICE)
    out = torch.empty_like(a)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        group_gemm([a], [b], method=method, out=[out])
        plan = GroupGemmPlan([a], [b], method=method)
        assert torch.equal(plan.run()[0], a)
        (cast,) = group_gemm([a], [b], method=method)
    assert torch.equal(out, a)
    assert torch.equal(cast, torch.full_like(cast, 256.0))


def test_backward_inside_of_autocast_follows_the_forward_outside():
    a = torch.full((16, 16), 257.0, device=DEVICE, requires_grad=True)
    b = torch.full((16, 16), 257.0, device=DEVICE)
    (out,) = group_gemm([a], [b])
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        out.backward(torch.eye(16, device=DEVICE))
    assert torch.equal(a.grad, b.t())


def test_autocast_leaves_fp8_alone():
    a = integers((16, 16), torch.float8_e4m3fn, device=DEVICE)
    if not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        (out,) = group_gemm([a], [a.t()])
    assert out.dtype == torch.bfloat16
    assert_exact(out, a, a.t())


# ---- torch.compile


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("method", ["auto", "round_robin"])
def test_compiled_caller(method, grad):
    @torch.compile(backend="eager")
    def double_and_sum(group_A, group_B):
        outs = group_gemm([a * 2 for a in group_A], group_B, method=method)
        return sum(c.sum() for c in outs) + 1

    group_A, group_B = operands(grad=grad)
    total = double_and_sum(group_A, group_B)
    wanted = sum((2 * a.detach().double() @ b.detach().double()).sum() for a, b in zip(group_A, group_B)) + 1
    assert total.item() == wanted.item()
    if grad:
        total.backward()
        for a, b in zip(group_A, group_B):
            assert_exact(a.grad, torch.full((a.shape[0], b.shape[1]), 2.0, device=DEVICE), b.detach().t())


def test_fullgraph_is_told_why_it_cannot_be():
    torch._dynamo.reset()
    (a, *_), (b, *_) = operands()
    with pytest.raises(Exception, match=r"group_gemm builds tables of addresses between two graphs: call it without"):
        torch.compile(lambda a, b: group_gemm([a], [b])[0], backend="eager", fullgraph=True)(a, b)
    torch._dynamo.reset()


def test_a_plan_is_made_between_two_graphs():
    torch._dynamo.reset()
    (a, *_), (b, *_) = operands()
    graphs = CompileCounter()
    made = torch.compile(lambda a, b: GroupGemmPlan([a * 2], [b]).run()[0] + 1, backend=graphs)(a, b)
    assert torch.equal(made, 2 * a @ b + 1)
    assert graphs.frame_count >= 1  # what follows the plan may run without a graph
    torch._dynamo.reset()


def test_compiled_caller_of_a_plan():
    group_A, group_B = operands()
    plan = GroupGemmPlan(group_A, group_B)

    @torch.compile(backend="eager")
    def first_plus_one():
        return plan.run()[0] + 1

    assert torch.equal(first_plus_one(), group_A[0] @ group_B[0] + 1)


def test_kernels_run_without_the_compiler_being_imported():
    program = (
        "import sys, torch\n"
        "from course_kernels import group_gemm, runtime\n"
        "a = torch.ones(16, 16, device=runtime.device())\n"
        "group_gemm([a], [a], method='round_robin')\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = forked.run(program)
    assert done.stdout == "False\n", done.stderr


# ---- torch.func


@pytest.mark.parametrize("method", ["auto", "round_robin"])
def test_functional_gradient(method):
    (a, _), (b, _) = operands()
    gradient = torch.func.grad(lambda a: group_gemm([a], [b], method=method)[0].sum())(a)
    assert_exact(gradient, torch.ones(a.shape[0], b.shape[1], device=DEVICE), b.t())


# ---- lazily negated views


def negated(rows, cols):
    """A matrix whose memory holds the values with the other sign: the imaginary part of a conjugate."""
    view = torch.complex(*(integers((rows, cols), torch.float32, seed, device=DEVICE) for seed in (0, 1))).conj().imag
    assert view.is_neg()
    return view


@pytest.mark.parametrize("method", METHODS)
def test_lazily_negated_views_are_refused(method):
    a, b = negated(16, 16), integers((16, 16), torch.float32, device=DEVICE)
    for call in (
        lambda: group_gemm([a], [b], method=method),
        lambda: group_gemm([b], [a], method=method),
        lambda: group_gemm([b], [b], method=method, out=[a]),
        lambda: GroupGemmPlan([a], [b], method=method),
    ):
        with pytest.raises(ValueError, match=r"\[0\] is a lazily negated view.*resolve_neg"):
            call()
    assert_exact(group_gemm([a.resolve_neg()], [b], method=method)[0], a.resolve_neg(), b)


@pytest.mark.parametrize("method", ["auto", "round_robin"])
def test_upstream_gradient_that_is_lazily_negated(method):
    (a, _), (b, _) = operands(grad=True)
    (out,) = group_gemm([a], [b], method=method)
    upstream = negated(*out.shape)
    out.backward(upstream)
    assert_exact(a.grad, upstream.resolve_neg(), b.detach().t())


# ---- no memory


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("make, words", [(group_gemm, "method must be 'auto'"), (GroupGemmPlan, "must have memory")])
def test_fake_tensors_reach_no_kernel(make, words):
    with FakeTensorMode():
        a = torch.empty(8, 8, device=DEVICE)
        with pytest.raises(TypeError, match=words):
            make([a], [a], method="round_robin")
        assert group_gemm([a], [a])[0].shape == (8, 8)


# ---- 64-bit addresses


@pytest.mark.parametrize("method", ["naive", "round_robin"])
def test_a_block_of_k_spans_more_than_2_to_the_31_elements(method):
    """The stride fits into 32 bits, the step to the next block does not. Only the pages in use are touched."""
    block_k, n = 32, 16
    stride = 2**31 // block_k + 16
    memory = torch.empty((block_k + 1) * stride, dtype=torch.uint8, device=DEVICE).view(torch.float8_e4m3fn)
    b = memory.view(block_k + 1, stride)[:, :n]
    b.copy_(integers(b.shape, torch.float8_e4m3fn, 1, device=DEVICE))
    a = integers((16, block_k + 1), torch.float8_e4m3fn, 2, low=1, device=DEVICE)
    (out,) = group_gemm([a], [b], method=method, config=GemmConfig(16, 16, block_k), out_dtype=torch.float32)
    assert_exact(out, a, b)


def test_dual_tensors_are_refused_with_out():
    a = torch.randn(8, 8, device=DEVICE)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, torch.ones_like(a))
        with pytest.raises(RuntimeError, match="with out has no forward-mode derivative"):
            group_gemm([dual], [a], out=[torch.empty_like(a)])
        group_gemm([a], [a], out=[torch.empty_like(a)])  # within the level, but not dual
