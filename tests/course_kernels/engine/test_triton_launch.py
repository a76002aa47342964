"""The Triton backend: plans for what is empty, in the interpreter, and run again on other operands."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch

from course_kernels import GemmConfig, runtime
from course_kernels.engine import triton_launch
from course_kernels.engine.options import Options
from course_kernels.packed.checks import problem_of
from course_kernels.testing import integers, reference
from packed_operands import Operands

pytestmark = [
    *([pytest.mark.gpu] if runtime.mode() == "gpu" else []),
    pytest.mark.skipif(runtime.mode() == "compile-only", reason="kernels cannot run in this process"),
]
DEVICE = runtime.device()
_DEFAULT = Options()


def layer(total=40, groups=3, depth=32, columns=24, dtype=torch.float32):
    a = integers((total, depth), dtype, total, device=DEVICE)
    b = integers((groups, depth, columns), dtype, 1, device=DEVICE)
    return Operands(
        a, b, torch.tensor([total // 2] * (groups - 1) + [total - 1] if groups else [], device=DEVICE).int()
    )


def multiply(operands, out, options=_DEFAULT, **parts):
    product = operands.product(**parts)
    return triton_launch.multiply(problem_of(product, options), product, out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plan_runs_again_on_another_batch(dtype):
    operands = layer(dtype=dtype)
    out = torch.full((40, 24), float("nan"), dtype=dtype, device=DEVICE)
    plan = multiply(operands, out)
    assert torch.equal(out, reference.grouped_mm(*operands[:3], dtype))
    other = layer(47, dtype=dtype)
    out = torch.full((47, 24), float("nan"), dtype=dtype, device=DEVICE)
    plan.run(other.product(), out)
    assert torch.equal(out, reference.grouped_mm(*other[:3], dtype))


@pytest.mark.parametrize("wider", [False, True], ids=["known", "new"])
def test_it_may_be_all_that_a_thread_does(wider):
    """On Hopper a thread that has used no GPU yet encodes descriptors, for a plan that has run, and for a new one of a
    kernel that is loaded."""
    first, other = layer(64, 2, 64, 128, torch.float16), layer(64, 2, 64, 256 if wider else 128, torch.float16)
    out = [
        torch.full((64, each.mat_b.shape[2]), float("nan"), dtype=torch.float16, device=DEVICE)
        for each in (first, other)
    ]
    plan, done = multiply(first, out[0]), []
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    thread = threading.Thread(
        target=lambda: done.append(multiply(other, out[1]) if wider else plan.run(other.product(), out[1]))
    )
    thread.start()
    thread.join()
    assert done
    for operands, got in zip((first, other), out):
        assert torch.equal(got[:-1], reference.grouped_mm(*operands[:3], torch.float16)[:-1])


@pytest.mark.parametrize("changes", [dict(depth=0), dict(groups=0), dict(total=0), dict(columns=0)], ids=str)
def test_what_is_empty_needs_no_kernel(changes):
    product = layer(**changes).product()
    problem = problem_of(product, Options())
    out = torch.full(problem.out_shape, 7.0, device=DEVICE)
    plan = triton_launch.plan(problem, product, out)
    assert isinstance(plan, triton_launch.EmptyPlan)
    plan.run(product, out)
    assert not out.any()


def test_without_depth_a_bias_is_written_and_a_tail_kept():
    operands = layer(depth=0)._replace(bias=torch.arange(72.0, device=DEVICE).view(3, 24))
    out = torch.full((40, 24), 7.0, device=DEVICE)
    multiply(operands, out, keep_tail=True)
    assert torch.equal(out[0], operands.bias[0])
    assert torch.equal(out[20], operands.bias[2])
    assert (out[39] == 7).all()


@pytest.mark.skipif(runtime.mode() == "interpreter", reason="there is no limit in the interpreter")
def test_a_configuration_too_large_is_refused_before_a_launch():
    out = torch.empty(40, 24, device=DEVICE)
    with pytest.raises(ValueError, match="config does not suit"):
        multiply(layer(), out, Options(config=GemmConfig(256, 256, 128, num_stages=4)))


def test_a_counter_lives_until_its_launch(monkeypatch):
    """Memory that was given back may be another thread's, or no one's."""
    zeros, made, launched = torch.zeros, [], []

    def watched(*size, **options):
        counter = zeros(*size, **options)
        made.append(weakref.ref(counter))
        return counter

    def relaunch(addresses, *others):
        counter = made[-1]()
        launched.append(counter is not None and counter.data_ptr() in addresses)

    product = Operands(torch.ones(5, 8), torch.ones(2, 8, 4), torch.tensor([2, 5], dtype=torch.int32)).product()
    plan = triton_launch.Plan(problem_of(product, Options()))
    plan._relaunch, plan._programs, plan._needs_counter = relaunch, lambda total: 1, True
    monkeypatch.setattr(torch, "zeros", watched)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    plan.run(product, torch.empty(5, 4))
    assert launched == [True]
