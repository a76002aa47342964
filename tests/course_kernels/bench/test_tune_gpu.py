"""Operands of the tuner's cases: multiplied right, and compiled for alike when they are small."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, runtime
from course_kernels.bench import tune, tune_gpu
from course_kernels.bench.tune import Case
from course_kernels.codegen.packed import specialized
from course_kernels.dtypes import TYPE_BYTES
from course_kernels.engine.arguments import prepare
from course_kernels.engine.product import Operands, Options, Problem
from course_kernels.engine.tuning.defaults import candidates
from course_kernels.runtime import Device

SMALL = [
    Case("m", "grouped_mm", "float16", (20, 0, 12), 0, 32, 48),
    Case("m", "grouped_mm", "float16", (20, 0, 12), 0, 32, 48, "row"),
    Case("k", "grouped_mm_k", "float16", (20, 0, 12), 16, 32, 0),
    Case("fp8", "grouped_mm", "float8_e4m3fn", (20, 12), 0, 32, 64),
    Case("tf32", "grouped_mm", "tf32", (20, 12), 0, 32, 64),
]


@pytest.mark.skipif(runtime.mode() == "compile-only", reason="kernels cannot be launched in this process")
@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.name}-{case.b_layout}")
def test_operands_are_multiplied_and_a_wrong_element_is_seen(case):
    tensors = tune_gpu.operands(case, runtime.device())
    _, b, offs, out, *_ = tensors
    assert tuple(offs.tolist()) == tuple(torch.tensor(case.sizes).cumsum(0).tolist())
    assert b.dim() == 2 or (b.stride(-1) == 1) == (case.b_layout == "row")
    out.fill_(float("nan"))
    assert tune_gpu.wrong_elements(case, tensors) == out.numel()
    tune_gpu._launch(case, GemmConfig(32, 32, 32), *tensors)()
    assert tune_gpu.wrong_elements(case, tensors) == 0
    reference = out.clone()
    out.view(-1)[5] += 1.0
    assert tune_gpu.wrong_elements(case, tensors) == tune_gpu.wrong_elements(case, tensors, reference) == 1


@pytest.mark.parametrize("dtype", TYPE_BYTES)
def test_tiny_operands_are_compiled_for_as_the_real_ones_are(dtype):
    """Same types, layouts, number of groups and multiples of 16: nothing else of them is known at compile time."""
    device = Device((9, 0), (9, 0), 132, None, True)
    real = [case for case in tune.grid([dtype]) if case.bytes_moved < 5e7]
    for case in real[:: max(1, len(real) // 6)]:
        config = candidates(case.op, case.bucket, case.dtype)[0]
        builds = []
        for tiny in (False, True):
            a, b, offs, out, *scales = tune_gpu.operands(case, "cpu", tiny=tiny)
            operands = Operands(a, b, offs, None, *scales)
            problem = Problem.of(operands, Options(out.dtype, config=config))
            problem = problem._replace(precision="tf32" if dtype == "tf32" else "ieee")
            prepared = prepare(problem, operands, out, device)
            builds.append((prepared.kernel, prepared.options, *specialized(prepared.kernel, prepared.arguments)))
        assert builds[0] == builds[1], case
