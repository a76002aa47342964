"""Threads that run kernels at the same time: in Triton's interpreter, whose state is the process's, one by one."""

from __future__ import annotations

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.functional import ScalingType

import forked
from course_kernels import (
    GemmConfig,
    deepgemm,
    group_gemm,
    grouped_gemm_jagged,
    grouped_mm,
    quantize_1x128,
    quantize_128x128,
    runtime,
    scaled_grouped_mm,
)
from course_kernels.packed.group_sums import group_sums
from course_kernels.testing import integers

pytestmark = pytest.mark.skipif(runtime.mode() != "interpreter", reason="about Triton's interpreter")

X, W = integers((24, 16), torch.float16, 0), integers((3, 16, 32), torch.float16, 1)
OFFS = torch.tensor([8, 8, 24], dtype=torch.int32)
ROWS = torch.ones(24), torch.ones(3, 32)
EIGHT = X.to(torch.float8_e4m3fn), W.to(torch.float8_e4m3fn)
WIDE = integers((40, 130), torch.float32, 2)
MASKED = X.view(3, 8, 16), W.mT.contiguous(), torch.zeros(3, 8, 32)
CALLS = {
    "grouped_mm": lambda: grouped_mm(X, W, offs=OFFS, backend="triton"),
    "weight gradient": lambda: grouped_mm(X.mT, X, offs=OFFS, backend="triton"),
    "scaled_grouped_mm": lambda: scaled_grouped_mm(
        *EIGHT, ROWS[0], ScalingType.RowWise, ROWS[1], ScalingType.RowWise, offs=OFFS, backend="triton"
    ),
    "group_gemm": lambda: group_gemm([X], [W[0]], method="tma", config=GemmConfig(16, 16, 16))[0],
    "deepgemm": lambda: deepgemm(
        *MASKED[:2], torch.zeros(3, 8, 32), torch.tensor([8, 3, 0]), backend="triton"
    ),
    "jagged": lambda: grouped_gemm_jagged(
        X, W[0], torch.tensor([0, 8, 24], dtype=torch.int32), implementation="triton"
    ),
    "group_sums": lambda: group_sums(X, OFFS, backend="triton"),
    "quantize_1x128": lambda: quantize_1x128(WIDE, backend="triton")[0].float(),
    "quantize_128x128": lambda: quantize_128x128(WIDE, backend="triton")[0].float(),
}  # fmt: skip


def test_kernels_of_all_kinds_at_once():
    wanted = {name: call() for name, call in CALLS.items()}
    jobs = list(CALLS) * 4
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda name: CALLS[name](), jobs))
    finally:
        sys.setswitchinterval(interval)
    wrong = [name for name, result in zip(jobs, found) if not torch.equal(result, wanted[name])]
    assert not wrong, f"wrong beside other threads: {wrong}"


def test_the_interpreter_does_not_warn_of_nan():
    x = torch.full((4, 16), torch.inf)
    x[0] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Triton 3.6's own, of loops to a loaded bound.
        warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0 to a scalar", DeprecationWarning)
        product = grouped_mm(x, torch.zeros(1, 16, 16), offs=torch.tensor([4]), backend="triton")
    assert product.isnan().all()


def test_the_first_kernels_of_a_process_start_at_once():
    """All threads find Triton being imported by one of them."""
    code = """
import sys, threading, torch
from concurrent.futures import ThreadPoolExecutor
from course_kernels import grouped_mm
sys.setswitchinterval(1e-6)
x, w, offs = torch.ones(8, 16), torch.ones(2, 16, 16), torch.tensor([4, 8])
barrier = threading.Barrier(8)
def call(_):
    barrier.wait()
    return grouped_mm(x, w, offs=offs, backend="triton")
with ThreadPoolExecutor(8) as pool:
    assert all((result == 16).all() for result in pool.map(call, range(8)))
"""
    done = forked.run(code)
    assert not done.returncode, done.stderr
