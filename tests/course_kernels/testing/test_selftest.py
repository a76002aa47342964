"""The two trials of an installation pass here, and notice a wrong result."""

import pytest
import torch

from course_kernels import runtime
from course_kernels.testing import selftest


@pytest.mark.skipif(runtime.mode() == "compile-only", reason="kernels cannot run in this process")
def test_a_kernel_runs_and_a_wrong_result_is_noticed(monkeypatch):
    selftest.run_a_kernel()
    monkeypatch.setattr(selftest, "group_gemm", lambda group_A, group_B, method: [torch.zeros(1)] * len(group_A))
    with pytest.raises(ArithmeticError, match="problem 0 of a grouped GEMM has a wrong result"):
        selftest.run_a_kernel()


def test_a_kernel_compiles_for_an_h200():
    selftest.compile_a_kernel()
