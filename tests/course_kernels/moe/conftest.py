"""Tests of the layer begin without plans of whole calls: these would hide what a test replaces below them."""

from __future__ import annotations

import pytest

from course_kernels.engine.plans import PlanCache


@pytest.fixture(autouse=True)
def no_plans():
    PlanCache.clear_all()
    yield
    PlanCache.clear_all()
