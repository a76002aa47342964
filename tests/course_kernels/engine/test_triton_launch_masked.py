"""Launches of the masked kernel: in the interpreter, where there is nothing to multiply, and again on a GPU."""

from __future__ import annotations

import pytest
import torch

from course_kernels import deepgemm, runtime
from course_kernels.engine import triton_launch
from course_kernels.engine.options import Options
from course_kernels.masked.checks import Call, check_call
from course_kernels.testing.canaries import canaries
from masked_operands import DEVICE, case, result_for

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


def planned(made, y):
    problem, product = check_call(Call(made.XQ, made.WQ, y, *made[2:]), Options(backend="triton"), y)
    return triton_launch.plan(problem, product, y), product


def test_a_plan_runs_again_on_other_tensors_and_sizes():
    first, second = case(torch.bfloat16, sizes=(3, 0)), case(torch.bfloat16, sizes=(0, 40))
    second = second._replace(WQ=second.WQ + 1)
    ys = [torch.full((2, 40, 48), 7.0, device=DEVICE) for _ in range(2)]
    plan, _ = planned(first, ys[0])
    for made, y in zip((first, second, first), (*ys, ys[1])):
        y.fill_(7.0)
        before = y.clone()
        plan.run(planned(made, y)[1], y)
        made.check(y, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_odd_nans_in_rows_that_do_not_count_keep_their_bits(dtype):
    made = case(torch.bfloat16)
    y = canaries(4 * 40 * 48, dtype, DEVICE).view(4, 40, 48)
    before = y.clone()
    deepgemm(*made[:2], y, made.group_layout, backend="triton")
    made.check(y, before)


def test_no_depth_is_a_sum_of_nothing():
    made = case(K=0)
    y, verify = result_for(made)
    plan, product = planned(made, y)
    assert type(plan) is triton_launch.EmptyPlan
    before = y.clone()
    plan.run(product, y)
    made.check(y, before)
    verify()
