"""FLOP counts of the grouped products, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import forked
from course_kernels import GroupGemmPlan, deepgemm, group_gemm, grouped_gemm_jagged, runtime, scaled_grouped_mm
from packed_operands import FP8, MODES, ROW, call, operands, scales

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
LISTS = ((5, 16), (1, 32)), ((16, 3), (32, 8))


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


@pytest.mark.parametrize("method", ["auto", "naive", "round_robin", "tma"])
def test_flops_of_lists(method):
    device = runtime.device()
    pairs = [[torch.ones(shape, device=device, dtype=torch.float16) for shape in each] for each in LISTS]
    with FlopCounterMode(display=False) as counter:
        results = group_gemm(*pairs, method=method)
        if method != "auto":
            GroupGemmPlan(*pairs, method=method).run()
    once = 2 * (5 * 3 * 16 + 1 * 8 * 32)
    assert counter.get_total_flops() == once * (1 + (method != "auto"))
    assert (results[1] == 32).all()


def test_flops_of_masked_and_jagged_products():
    device = runtime.device()
    x, w, y = (torch.ones(shape, device=device, dtype=torch.float16) for shape in ((3, 4, 16), (3, 6, 16), (3, 4, 6)))
    with FlopCounterMode(display=False) as counter:
        deepgemm(x, w, y, torch.ones(3, dtype=torch.int32, device=device))
    assert counter.get_total_flops() == 2 * 3 * 4 * 16 * 6
    with FlopCounterMode(display=False) as counter:
        grouped_gemm_jagged(x[0], w[0].mT, torch.tensor([0, 4], device=device), implementation="triton")
    assert counter.get_total_flops() == 2 * 4 * 16 * 6
