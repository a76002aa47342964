"""Without the extra, the library works and an error names what to install."""

from __future__ import annotations

import forked


def test_without_the_extra_an_error_names_it_and_the_library_works():
    code = """
import sys
sys.modules["cutlass"] = None
from course_kernels import grouped_mm
import torch
offs = torch.tensor([2, 4], dtype=torch.int32)
assert torch.equal(grouped_mm(torch.ones(4, 8), torch.ones(2, 8, 3), offs=offs), torch.full((4, 3), 8.0))
try:
    import course_kernels.cutlass_ops
except ImportError as error:
    print(error)
"""
    done = forked.run(code)
    assert "pip install '.[cutlass]' in a checkout" in done.stdout, done.stderr
    assert "nvidia-cutlass-operators" in done.stdout


def test_the_library_does_not_import_cutlass():
    code = "import sys, course_kernels, course_kernels.codegen; print('cutlass' in sys.modules)"
    done = forked.run(code)
    assert done.stdout == "False\n", done.stderr
