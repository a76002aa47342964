"""The loop in torch: right in every mode, and never led out of its operands by wrong ends."""

from __future__ import annotations

import pytest
import torch

from course_kernels.engine import torch_loop
from course_kernels.engine.options import Options
from course_kernels.packed.checks import problem_of
from course_kernels.testing import integers, reference
from packed_operands import Operands

SHAPES = {
    "m": ((20, 8), (3, 8, 5)),
    "n": ((3, 4, 8), (8, 20)),
    "k": ((4, 20), (20, 5)),
    "batch": ((3, 4, 8), (3, 8, 5)),
}


def run(mode, ends=(5, 5, 17), out=None, **parts):
    a, b = (integers(shape, torch.float32, i) for i, shape in enumerate(SHAPES[mode]))
    operands = Operands(a, b, None if mode == "batch" else torch.tensor(ends, dtype=torch.int32))
    product = operands.product(**parts)
    problem = problem_of(product, Options())
    out = torch.full(problem.out_shape, 7.0) if out is None else out
    torch_loop.Plan(problem).run(product, out)
    return operands, out


@pytest.mark.parametrize("mode", SHAPES)
def test_every_mode(mode):
    operands, out = run(mode)
    assert torch.equal(out, reference.grouped_mm(*operands[:3], torch.float32))


def test_a_tail_is_zeroed_or_kept():
    assert not run("m")[1][17:].any()
    assert (run("m", keep_tail=True)[1][17:] == 7).all()


def test_ends_that_decrease_or_reach_too_far_stay_inside():
    operands, out = run("m", ends=(9, 4, 99))
    a, b = operands[:2]
    assert torch.equal(out, torch.cat([a[:9] @ b[0], a[9:] @ b[2]]))
