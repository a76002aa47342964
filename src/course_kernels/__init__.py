"""Grouped GEMM kernels: many matrix products of different sizes in one launch.

Importing this package decides how kernels run (``runtime.MODE``); it loads torch, and triton only when a kernel is
first needed.
"""

# runtime first: it must see the process before triton is imported. The names are imported here and not on demand,
# because a submodule that is loaded later would take the place of the function of the same name.
from course_kernels import runtime  # isort: skip
from course_kernels.config import GemmConfig
from course_kernels.group_gemm import GroupGemmPlan, group_gemm
from course_kernels.grouped_mm import grouped_mm
from course_kernels.scaled_grouped_mm import scaled_grouped_mm

__all__ = ["GemmConfig", "GroupGemmPlan", "group_gemm", "grouped_mm", "runtime", "scaled_grouped_mm"]
__version__ = "0.1.0"
