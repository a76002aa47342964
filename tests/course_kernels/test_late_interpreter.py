"""Kernels run in the interpreter whatever has imported Triton first."""

from __future__ import annotations

import pytest

import forked
from course_kernels import runtime

pytestmark = pytest.mark.skipif(runtime.has_gpu(), reason="with a GPU kernels are compiled")
IMPORTERS = {
    "an optimizer": "torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])",
    "checkpointing": "import torch.utils.checkpoint\n"
    "torch.utils.checkpoint.checkpoint(torch.sin, torch.ones(3, requires_grad=True), use_reentrant=False)",
    "the profiler": "with torch.profiler.profile():\n    torch.ones(3) + 1",
    "a counter of FLOPs": "import torch.utils.flop_counter",
    "Triton's tools": "import triton.language, triton.tools.ragged_tma",
    "the flag, too late": "import os, triton.language; os.environ['TRITON_INTERPRET'] = '1'",
}
# A reduction, a scan, methods of blocks and library functions: what kernels take from Triton's own library.
CODE = """
import sys, torch
{importer}
assert "triton.language" in sys.modules
from course_kernels import grouped_gemm_jagged, grouped_mm, quantize_1x128, runtime
rows, weights, ends = torch.ones(7, 16), torch.ones(2, 16, 8), torch.tensor([3, 7])
print(runtime.mode(), grouped_mm(rows, weights, offs=ends, backend="triton").unique().tolist())
print(grouped_gemm_jagged(rows, weights[0], torch.tensor([0, 3, 7]), implementation="triton").unique().tolist())
print(quantize_1x128(rows, backend="triton")[0].float().unique().tolist())
"""


@pytest.mark.parametrize("importer", IMPORTERS)
def test_kernels_run_whatever_imported_triton(importer):
    done = forked.run(CODE.format(importer=IMPORTERS[importer]))
    assert done.stdout.splitlines() == ["interpreter [16.0]", "[16.0]", "[448.0]"], done.stderr
