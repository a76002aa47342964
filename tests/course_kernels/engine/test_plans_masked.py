"""From a call to a launch: which backend, plans that are found again, and what a warm call checks."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, deepgemm, runtime
from course_kernels.engine import plans as kept
from course_kernels.engine import torch_loop
from course_kernels.engine.hopper import cute
from masked_operands import DEVICE, FP8, case, result_for

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


@pytest.fixture(autouse=True)
def plans(monkeypatch):
    monkeypatch.setattr(kept, "plans", kept.PlanCache())
    return kept.plans


def call(made, y=None, **options):
    y = result_for(made)[0] if y is None else y
    before = y.clone()
    deepgemm(*made[:2], y, *made[2:], **options)
    made.check(y, before)
    return y


def test_plans_are_found_again_for_other_values_and_sizes(plans, monkeypatch):
    made = case(FP8, "channel", sizes=(1, 0, 40))
    call(made, backend="triton")
    monkeypatch.setattr(kept, "choose", lambda *_: pytest.fail("a plan was there"))
    other = case(FP8, "channel", sizes=(40, 7, 0))
    call(other._replace(x_scale=made.x_scale * 4), backend="triton")
    call(other, backend="triton", check=True)
    assert len(plans) == 1


def test_each_backend_and_class_of_rows_has_a_plan_of_its_own(plans):
    made = case()
    for options in (dict(), dict(backend="triton"), dict(expected_m=100), dict(expected_m=101)):
        call(made, **options)
    assert len(plans) == 3
    call(made, backend="triton", config=GemmConfig(16, 32, 32))
    assert len(plans) == 4


def test_a_warm_call_checks_memory(plans):
    made = case(N=64, K=64)
    call(made)
    memory = torch.zeros(2 * made.XQ.numel(), dtype=torch.float16, device=DEVICE)
    y = memory[: made.XQ.numel()].view(made.XQ.shape)
    call(made, y)
    with pytest.raises(ValueError, match="Y shares memory with XQ"):
        deepgemm(y, made.WQ, y, made.group_layout)
    assert len(plans) == 2


def test_options_that_are_no_key_are_reported():
    made = case()
    with pytest.raises(TypeError, match="config must be a GemmConfig, got list"):
        call(made, config=[])


def test_who_computes_what(monkeypatch):
    asked = []
    plan = torch_loop.Plan
    monkeypatch.setattr(torch_loop, "Plan", lambda problem: asked.append("torch") or plan(problem))
    monkeypatch.setattr(cute, "offer", lambda *_: asked.append("asked"))
    call(case(), backend="torch")
    call(case(), backend="auto")
    call(case(), backend="triton")
    assert asked == (
        ["torch", "torch"]
        if DEVICE.type == "cpu"
        else ["torch", *["asked"] * (cute.runs_on(DEVICE) and cute.installed())]
    )
    if DEVICE.type == "cpu":
        with pytest.raises(ValueError, match=r"backend='cute' needs .* and operands are on cpu"):
            call(case(), backend="cute")
