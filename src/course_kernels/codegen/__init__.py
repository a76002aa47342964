"""Compile any kernel for any GPU on a machine without one, and read the result.

>>> compiled = compile_kernel("tma", "sm_90", dtype="float16")
>>> compiled.registers, compiled.spills.bytes, compiled.instructions["wgmma"]

``compile_kernel`` takes a kernel of this library by name, as it is launched, or any ``@triton.jit`` function: itself,
as "module:function" of a module that a new process can import, or as "path/to/file.py:function". A ``Compiled`` has the
text of every stage down to PTX or AMD's assembly, what the compiler says of registers, shared memory and spills, and
counts of the instructions that matter; ``summary`` makes a table of several. ``compile_many`` compiles several at a
time, ``TARGETS`` names the GPUs, and another ``Target`` can be made by hand. ``shipped`` lists what the library
launches on a target by default, and ``claims`` the targets on which it launches a build.

Compilation happens in a child process, so it works where this process runs Triton's interpreter, too; ``close`` ends
that process. What a kernel compiles to says nothing about how fast it runs.
"""

from course_kernels.codegen.builds import build, claims, shipped
from course_kernels.codegen.compiled import Compiled, Spills, summary
from course_kernels.codegen.compiler import CompileError, close, compile_kernel, compile_many
from course_kernels.codegen.spec import Build
from course_kernels.targets import TARGETS, Target

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
