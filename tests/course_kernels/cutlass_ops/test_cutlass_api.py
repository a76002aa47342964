"""The API's names of its first release still work, with a warning."""

from __future__ import annotations

import cutlass.operators as ops
import pytest
import torch

from course_kernels import cutlass_ops
from course_kernels.cutlass_ops import cutlass_api
from cutlass_cases import TOTAL_M, G, K, N, described, meta


def test_the_first_release_s_names_with_a_warning():
    operands = meta(TOTAL_M, K), meta(G, N, K).mT, meta(TOTAL_M, N)
    with pytest.warns(DeprecationWarning, match="GroupedGemmArguments is deprecated"):
        args = cutlass_api.arguments.GroupedGemmArguments(
            *operands, accumulator_type=torch.float32, offsets=meta(G, dtype=torch.int32)
        )
    with pytest.warns(DeprecationWarning, match=r"cutlass_api\.get_kernels is deprecated"):
        kernels = cutlass_api.get_kernels(args, cc=100)
    assert len(kernels) == len(cutlass_ops.discover(described(), "100a"))
    with pytest.warns(DeprecationWarning, match="get_kernels"):
        assert cutlass_api.get_kernels(args, cc=80) == []
    compiled = cutlass_ops.compile(kernels[0], args, "100a")
    assert cutlass_ops.report(compiled).instructions["tcgen05.mma"] > 0
    with pytest.warns(DeprecationWarning, match="is_device_cc_supported"):
        status = cutlass_api.utils.is_device_cc_supported({100})
    assert isinstance(status, ops.Status)
