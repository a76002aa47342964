"""The jagged kernels in Triton with any blocks and any number of groups, and the configuration that they get."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, runtime
from course_kernels.codegen import TARGETS
from course_kernels.jagged import triton_kernels
from jagged_cases import SIZES, expected, guarded_results, operands

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


@pytest.mark.parametrize("block", [(16, 32, 16), (32, 16, 64)])
@pytest.mark.parametrize("group_m", [1, 3])
@pytest.mark.parametrize("kernel", triton_kernels.KERNELS)
def test_any_configuration_writes_every_element_once_and_nothing_else(monkeypatch, kernel, group_m, block):
    A_packed, B, offsets = operands(tail=19)
    with guarded_results(monkeypatch, (sum(SIZES) + 19, 37)):
        result = triton_kernels.multiply(kernel, A_packed, B, offsets, GemmConfig(*block, group_m=group_m))
    torch.testing.assert_close(result, expected(A_packed, B, sum(SIZES)), rtol=0, atol=0)


@pytest.mark.parametrize("kernel", triton_kernels.KERNELS)
@pytest.mark.parametrize("groups", [1, 2, 5, 65])
def test_any_number_of_groups(kernel, groups):
    sizes = [g % 4 if g % 3 else 0 for g in range(groups - 1)] + [5]  # what comes after the last group has no tiles
    A_packed, B, offsets = operands(sizes, 16, 16, tail=3)
    result = triton_kernels.multiply(kernel, A_packed, B, offsets)
    torch.testing.assert_close(result, expected(A_packed, B, sum(sizes)), rtol=0, atol=0)


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_chosen_configurations_fit(target):
    for itemsize in (2, 4):
        for rows, block_m in ((8, 16), (32, 64), (512, 128)):
            config = triton_kernels.choose_config(8 * rows, 8, 512, itemsize, target.shared_limit)
            assert config.block_m == block_m
            assert config.num_stages >= 2
            assert config.block_k * itemsize == 128
            assert config.valid_for("round_robin", itemsize, shared_limit=target.shared_limit) is None
    assert triton_kernels.choose_config(4096, 8, 16, 2).block == (16, 64, 64)
