"""Tests of the layer begin without plans of whole calls: these would hide what a test replaces below them."""

from __future__ import annotations

import pytest

from course_kernels.moe import layer_plan


@pytest.fixture(autouse=True)
def no_plans():
    layer_plan.plans.clear()
    yield
    layer_plan.plans.clear()
