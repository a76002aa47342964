"""Tests of the layer begin without plans of whole calls: these would hide what a test replaces below them."""

from __future__ import annotations

import pytest

from course_kernels.moe import launching, layer, layer_plan, routing

KEPT = layer_plan.plans, layer._kept, launching._launches, routing._sortings


@pytest.fixture(autouse=True)
def no_plans():
    for plans in KEPT:
        plans.clear()
    yield
    for plans in KEPT:
        plans.clear()
