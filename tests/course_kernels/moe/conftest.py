"""Tests of the layer begin without plans of whole calls: these would hide what a test replaces below them."""

from __future__ import annotations

import pytest

from course_kernels.moe import layer, layer_plan


@pytest.fixture(autouse=True)
def no_plans():
    for plans in (layer_plan.plans, layer._kept):
        plans.clear()
    yield
    for plans in (layer_plan.plans, layer._kept):
        plans.clear()
