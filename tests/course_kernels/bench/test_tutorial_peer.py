"""The tutorial's kernel computes the product."""

from __future__ import annotations

import pytest

from course_kernels.bench.tutorial_peer import TutorialPlan
from course_kernels.testing import assert_exact, make_operands


@pytest.mark.gpu
@pytest.mark.parametrize("config", [0, 1, 2])
def test_tutorial_peer_computes_the_product(config):
    group_A, group_B = make_operands([(256, 256, 256), (64, 192, 128), (320, 64, 64)], device="cuda")
    outs = TutorialPlan(group_A, group_B, config).run()
    for i, (c, a, b) in enumerate(zip(outs, group_A, group_B)):
        assert_exact(c, a, b, what=f"problem {i}")
