"""Plans: prepared once, run often, on memory that they keep alive; how they split a list into launches."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch

from course_kernels import GemmConfig, GroupGemmPlan, group_gemm, runtime
from course_kernels.lists import launch
from course_kernels.testing import Problem, assert_exact, integers, make_operands, ragged_problems, strided_like

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

METHODS = ("naive", "round_robin", "tma")
GROUPED = ("round_robin", "tma")
SCHEDULES = ("round_robin", "chunks", "dynamic")
SMALL = GemmConfig(32, 32, 32)
EQUAL = [Problem(48, 40, 32)] * 3


def operands(problems=EQUAL, dtype=torch.float16, seed=0, strides="row"):
    return make_operands(problems, dtype, seed, strides=strides, device=runtime.device())


def check(outs, group_A, group_B):
    for i, (c, a, b) in enumerate(zip(outs, group_A, group_B)):
        assert_exact(c, a, b, what=f"problem {i}")


def blank(plan):
    for c in plan.out:
        c.fill_(float("nan"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", METHODS)
def test_run_reads_the_operands_afresh(method, schedule, dtype):
    """Each run, the dynamic schedule's included, starts from the same state and finds the present contents."""
    group_A, group_B = operands(dtype=dtype)
    config = GemmConfig(32, 32, 32, schedule=schedule)
    plan = GroupGemmPlan(group_A, group_B, method=method, config=config)
    addresses = [c.data_ptr() for c in plan.out]
    for seed in range(3):
        for group, fresh in zip((group_A, group_B), operands(dtype=dtype, seed=seed)):
            for target, source in zip(group, fresh):
                target.copy_(source)
        blank(plan)
        outs = plan.run() if seed else plan()
        check(outs, group_A, group_B)
        assert outs is plan.out
        assert [c.data_ptr() for c in outs] == addresses


@pytest.mark.parametrize("method", METHODS)
def test_plan_keeps_its_operands_alive(method):
    group_A, group_B = operands(ragged_problems())
    wanted = [a.double() @ b.double() for a, b in zip(group_A, group_B)]
    watched = [weakref.ref(t) for t in group_A + group_B]
    plan = GroupGemmPlan(group_A, group_B, method=method, config=SMALL)
    del group_A, group_B
    gc.collect()
    assert all(ref() is not None for ref in watched), "an operand whose address is in a table was freed"
    # What would take the place of freed memory.
    noise = [torch.full_like(ref(), float("nan")) for ref in watched]
    assert all(torch.equal(c.double(), w) for c, w in zip(plan.run(), wanted))
    del plan, noise
    gc.collect()
    assert all(ref() is None for ref in watched), "a plan that is gone still holds operands"


@pytest.mark.parametrize("method", METHODS)
def test_call_on_temporaries(method):
    group_A, group_B = operands()
    outs = group_gemm([a.clone() for a in group_A], [b.t().contiguous().t() for b in group_B], method=method)
    check(outs, group_A, group_B)


def test_plan_writes_to_the_given_out():
    group_A, group_B = operands()
    out = [torch.full((48, 40), float("nan"), dtype=torch.float16, device=runtime.device()) for _ in EQUAL]
    plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=SMALL, out=out)
    assert all(c.isnan().all() for c in out), "a plan writes when it is run, not before"
    plan.run()
    check(out, group_A, group_B)


@pytest.mark.parametrize("programs", [1, 2, 5, 1000])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", GROUPED)
def test_any_number_of_programs(method, schedule, programs):
    group_A, group_B = operands([Problem(50, 40, 16), Problem(16, 96, 48), Problem(1, 1, 1)])
    plan = GroupGemmPlan(
        group_A, group_B, method=method, config=GemmConfig(32, 32, 32, schedule=schedule), programs=programs
    )
    for _ in range(2):
        blank(plan)
        check(plan.run(), group_A, group_B)
    assert all(step.programs == min(programs, step.tiles) for step in plan.launches)


def test_plan_of_operands_that_require_gradients_computes_without_them():
    group_A, group_B = operands(dtype=torch.bfloat16)
    for t in group_A + group_B:
        t.requires_grad_()
    plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=SMALL)
    for _ in range(2):
        check(plan.run(), [a.detach() for a in group_A], [b.detach() for b in group_B])
    assert not any(c.requires_grad for c in plan.out)


# ---- launches


def kernels_of(plan):
    return [(step.kernel, step.problems) for step in plan.launches]


def test_like_problems_share_one_launch():
    group_A, group_B = operands([Problem(64, 32, 16), Problem(8, 40, 64), Problem(16, 8, 0), Problem(1, 8, 8)])
    for method in GROUPED:
        plan = GroupGemmPlan(group_A, group_B, method=method, config=SMALL)
        assert kernels_of(plan) == [(method, (0, 1, 2, 3))]
        assert plan.launches[0].tiles == 2 + 2 + 1 + 1
    plan = GroupGemmPlan(group_A, group_B, method="naive", config=SMALL)
    assert kernels_of(plan) == [("naive", (i,)) for i in range(4)]


def test_mixed_alignment_takes_few_launches():
    """Only what breaks the 16-byte rule leaves the descriptor kernel, and it does not take the others along."""
    aligned = [Problem(32, 32, 32), Problem(64, 16, 48)]
    odd = [Problem(33, 31, 5), Problem(7, 9, 11), Problem(16, 16, 17)]
    group_A, group_B = operands([aligned[0], odd[0], aligned[1], odd[1], odd[2]])
    plan = GroupGemmPlan(group_A, group_B, method="tma", config=SMALL)
    assert kernels_of(plan) == [("tma", (0, 2)), ("round_robin", (1, 3, 4))]
    check(plan.run(), group_A, group_B)


def test_empty_outputs_take_no_launch():
    group_A, group_B = operands([Problem(0, 8, 8), Problem(8, 8, 8), Problem(8, 0, 8)])
    plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=SMALL)
    assert kernels_of(plan) == [("round_robin", (1,))]
    group_A, group_B = operands([Problem(0, 8, 8)] * 2)
    assert GroupGemmPlan(group_A, group_B, method="naive").launches == []


def test_each_layout_has_its_launch():
    generator = torch.Generator().manual_seed(0)
    layouts = ["row", "col", "every_other", "row"]
    group_A = [strided_like(integers((32, 32), generator=generator, device=runtime.device()), how) for how in layouts]
    group_B = [integers((32, 32), generator=generator, device=runtime.device()) for _ in layouts]
    plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=SMALL)
    assert [problems for _, problems in kernels_of(plan)] == [(0, 3), (1,), (2,)]
    check(plan.run(), group_A, group_B)


def test_dynamic_launches_of_one_plan_count_apart():
    """Two launches in one plan must not draw tickets from one counter."""
    group_A, group_B = operands([Problem(64, 96, 32), Problem(65, 33, 17)] * 2)
    plan = GroupGemmPlan(group_A, group_B, method="tma", config=GemmConfig(32, 32, 32, schedule="dynamic"), programs=3)
    assert len(plan.launches) == 2
    for _ in range(3):
        blank(plan)
        check(plan.run(), group_A, group_B)


def test_repr_and_launch_say_what_runs():
    group_A, group_B = operands([Problem(64, 32, 32), Problem(33, 31, 5)])
    plan = GroupGemmPlan(group_A, group_B, method="tma", config=GemmConfig(32, 16, 64), programs=2)
    assert repr(plan).splitlines() == [
        "GroupGemmPlan of 2 problems, 2 launches:",
        "  tma: 1 problem, 4 tiles of 32×16×64, 2 programs",
        "  round_robin: 1 problem, 4 tiles of 32×16×64, 2 programs",
    ]
    assert isinstance(plan.launches[0], launch.Launch)
    assert plan.launches[0].records is None


def test_auto_prefers_descriptors_where_they_pay():
    group_A, group_B = operands([Problem(64, 64, 64)])
    (step,) = GroupGemmPlan(group_A, group_B).launches
    expected = {"tma", "round_robin"} if runtime.mode() == "gpu" else {"tma"}
    assert step.kernel in expected


def test_without_descriptor_hardware_the_pointer_kernel_takes_over(monkeypatch):
    monkeypatch.setattr(runtime, "supports_descriptors", lambda device: False)
    group_A, group_B = operands([Problem(64, 64, 64)])
    for method in ("auto", "tma"):
        plan = GroupGemmPlan(group_A, group_B, method=method, config=SMALL)
        assert kernels_of(plan) == [("round_robin", (0,))]
        check(plan.run(), group_A, group_B)


# ---- memory that changes under a plan, copies, and what autograd has to know


def test_run_refuses_operands_that_have_other_memory():
    group_A, group_B = operands()
    group_A[1] = torch.nn.Parameter(group_A[1])
    out = [torch.zeros(48, 40, dtype=torch.float16, device=runtime.device()) for _ in EQUAL]
    plan = GroupGemmPlan(group_A, group_B, method="tma", config=SMALL, out=out)
    check(plan.run(), group_A, group_B)
    before = [c.clone() for c in out]

    held, group_A[1].data = group_A[1].data, torch.full_like(group_A[1], 2)
    with pytest.raises(RuntimeError, match=r"group_A\[1\] has other memory than when the plan was made.*new plan"):
        plan.run()
    group_A[1].data = held
    group_B[2].untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"group_B\[2\] has other memory"):
        plan.run()
    assert all(torch.equal(c, b) for c, b in zip(out, before)), "a refused run wrote"

    group_A, group_B = operands()
    plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=SMALL, out=out)
    out[0].resize_(480, 400)
    with pytest.raises(RuntimeError, match=r"out\[0\] has other memory"):
        plan.run()


def test_plan_holds_memory_that_an_operand_has_left():
    """No kernel writes to what the allocator may have handed to somebody else."""
    group_A, group_B = operands()
    group_A[0] = torch.nn.Parameter(group_A[0])
    plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=SMALL)
    address = group_A[0].data_ptr()
    group_A[0].data = torch.zeros_like(group_A[0])
    fresh = [torch.zeros_like(group_A[0]) for _ in range(20)]
    assert address not in [tensor.data_ptr() for tensor in fresh]
    del plan


def test_a_plan_cannot_be_copied():
    plan = GroupGemmPlan(*operands(), method="tma", config=SMALL)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps, lambda plan: copy.deepcopy({"plan": plan})):
        with pytest.raises(TypeError, match=r"a GroupGemmPlan cannot be copied or pickled.*make a new plan"):
            attempt(plan)


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_autograd_notices_that_out_was_written(method):
    saved = torch.ones(48, 40, dtype=torch.float16, device=runtime.device())
    weight = torch.ones_like(saved, requires_grad=True)
    loss = (weight * saved).sum()
    group_A, group_B = operands(EQUAL[:1])
    group_gemm(group_A, group_B, out=[saved], method=method, config=SMALL if method != "auto" else None)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autograd_notices_that_a_plan_ran_again():
    group_A, group_B = operands(EQUAL[:1])
    plan = GroupGemmPlan(group_A, group_B, method="tma", config=SMALL)
    (y,) = plan.run()
    weight = torch.ones_like(y, requires_grad=True)
    loss = (weight * y).sum()
    plan.run()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_out_that_requires_a_gradient_or_has_no_version():
    """As with torch's own ``out``: the first is written to without gradients alone, the second in its mode alone."""
    group_A, group_B = operands(EQUAL[:1])
    out = torch.nn.Parameter(torch.zeros(48, 40, dtype=torch.float16, device=runtime.device()))
    with pytest.raises(ValueError, match=r"out\[0\] requires a gradient"):
        group_gemm(group_A, group_B, out=[out], method="tma", config=SMALL)
    with torch.no_grad():
        group_gemm(group_A, group_B, out=[out], method="tma", config=SMALL)
    check([out.detach()], group_A, group_B)
    with torch.inference_mode():
        out = torch.zeros_like(out)
        group_gemm(group_A, group_B, out=[out], method="tma", config=SMALL)
        check([out], group_A, group_B)
        plan = GroupGemmPlan(group_A, group_B, method="tma", config=SMALL)
    before = out.clone()
    with pytest.raises(ValueError, match=r"out\[0\] was made in torch.inference_mode\(\)"):
        group_gemm([2 * group_A[0]], group_B, out=[out], method="tma", config=SMALL)
    assert torch.equal(out, before)
    check(plan.run(), group_A, group_B)
