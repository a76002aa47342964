"""The GPU that the kernel in CuTe DSL runs on."""

from __future__ import annotations

import pytest
import torch

from course_kernels.engine.hopper import cute


def hopper_gpu() -> torch.device:
    """The first GPU; the test is skipped unless it is a Hopper GPU with the packages of the extra ``cutlass``."""
    device = torch.device("cuda", 0)
    if not cute.runs_on(device):
        pytest.skip("needs a GPU of compute capability 9.0")
    if not cute.installed():
        pytest.skip("needs the packages of the extra cutlass")
    return device
