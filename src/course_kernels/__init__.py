"""Grouped GEMM kernels: many matrix products of different sizes in one launch.

Importing this package loads torch and changes nothing else; Triton is loaded when a kernel is first needed.
"""

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.gmm.api import gmm, nptgmm, ptgmm
from course_kernels.layout import GroupLayout
from course_kernels.lists.api import GroupGemmPlan, group_gemm
from course_kernels.packed.api import grouped_mm
from course_kernels.packed.scaled import scaled_grouped_mm

__all__ = [
    "GemmConfig",
    "GroupGemmPlan",
    "GroupLayout",
    "gmm",
    "group_gemm",
    "grouped_mm",
    "nptgmm",
    "ptgmm",
    "runtime",
    "scaled_grouped_mm",
]
__version__ = "0.1.0"
