"""Grouped GEMM kernels: many matrix products of different sizes in one launch.

Importing this package loads torch and changes nothing else; Triton is loaded when a kernel is first needed.
"""

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.fp8.quantize import quantize_1x128, quantize_128x128
from course_kernels.fp8.scaled import scaled_grouped_mm
from course_kernels.fp8.training import to_fp8_then_scaled_grouped_mm
from course_kernels.gmm.api import gmm, nptgmm, ptgmm
from course_kernels.jagged.api import grouped_gemm_jagged, grouped_gemm_jagged_persistent
from course_kernels.layout import GroupLayout
from course_kernels.lists.api import GroupGemmPlan, group_gemm
from course_kernels.masked.api import deepgemm
from course_kernels.masked.shuffle import shuffle_weight, unshuffle_weight
from course_kernels.moe import moe_feed_forward
from course_kernels.packed.api import grouped_mm
from course_kernels.packed.group_sums import group_sums

__all__ = [
    "GemmConfig",
    "GroupGemmPlan",
    "GroupLayout",
    "deepgemm",
    "gmm",
    "group_gemm",
    "group_sums",
    "grouped_gemm_jagged",
    "grouped_gemm_jagged_persistent",
    "grouped_mm",
    "moe_feed_forward",
    "nptgmm",
    "ptgmm",
    "quantize_1x128",
    "quantize_128x128",
    "runtime",
    "scaled_grouped_mm",
    "shuffle_weight",
    "to_fp8_then_scaled_grouped_mm",
    "unshuffle_weight",
]
__version__ = "0.1.0"
