"""Compile any kernel for any GPU on a machine without one, and read the result.

>>> compiled = compile_kernel("tma", "sm_90", dtype="float16")
>>> compiled.registers, compiled.spills.bytes, compiled.instructions["wgmma"]

Compilation happens in a child process, so it works where this process runs Triton's interpreter, too.
"""

from course_kernels.codegen.builds import build, claims, shipped
from course_kernels.codegen.compiled import Compiled, Spills, summary
from course_kernels.codegen.compiler import CompileError, close, compile_kernel, compile_many
from course_kernels.codegen.spec import Build
from course_kernels.codegen.targets import TARGETS, Target

__all__ = [
    "TARGETS",
    "Build",
    "CompileError",
    "Compiled",
    "Spills",
    "Target",
    "build",
    "claims",
    "close",
    "compile_kernel",
    "compile_many",
    "shipped",
    "summary",
]
