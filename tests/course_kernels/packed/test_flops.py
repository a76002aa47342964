"""FLOP counts of the grouped products, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import forked
from course_kernels import runtime, scaled_grouped_mm
from packed_operands import FP8, MODES, ROW, call, operands, scales

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


@pytest.mark.parametrize("mode", MODES)
def test_flops_forward_and_backward(mode):
    a, b, offs, _ = operands(mode, grad=True)
    once = {"m": 20 * 7 * 10, "n": 6 * 7 * 20, "k": 6 * 20 * 10, "batch": 3 * 6 * 7 * 10}[mode] * 2
    with FlopCounterMode(display=False) as counter:
        out = call(a, b, offs, None)
    assert counter.get_total_flops() == once
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 2 * once
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call(a, b, offs, None, out=torch.empty_like(out))
    assert counter.get_total_flops() == once


@pytest.mark.parametrize("mode", MODES)
def test_flops_of_scaled(mode):
    if not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    a, b, offs, _ = operands(mode, FP8)
    scale_a, scale_b = scales(mode)
    with FlopCounterMode(display=False) as counter:
        scaled_grouped_mm(a, b, scale_a, ROW, scale_b, ROW, offs=offs)
    once = {"m": 20 * 7 * 10, "n": 6 * 7 * 20, "k": 6 * 20 * 10, "batch": 3 * 6 * 7 * 10}[mode] * 2
    assert counter.get_total_flops() == once


def test_a_counter_counts_whoever_looked_for_it_first():
    """``find_spec`` after the import here, and before the counter's own."""
    code = """
import importlib.util, torch
from course_kernels import grouped_mm
assert importlib.util.find_spec("torch.utils.flop_counter")
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    grouped_mm(torch.ones(4, 4), torch.ones(1, 4, 4), offs=torch.tensor([4]), backend="torch")
print(counter.get_total_flops())
"""
    done = forked.run(code)
    assert done.stdout.strip() == "128", done.stderr
