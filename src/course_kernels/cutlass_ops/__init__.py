"""NVIDIA's CUTLASS Operator API: find operators for given operands, compile them, read their code and run them.

>>> args = cutlass_ops.arguments(mat_a, mat_b, offs=offs)
>>> found = cutlass_ops.discover(args, "100f")
>>> compiled = cutlass_ops.compile(found[0], args, "100f")
>>> cutlass_ops.report(compiled).instructions["tcgen05.mma"]
>>> cutlass_ops.run(compiled, args)

All but the last line works on a machine without a GPU, and without memory for the operands: describe them with tensors
on torch's "meta" device. Arguments and operators are NVIDIA's own objects, and the rest of its API takes them, too.
This package adds what the API lacks: it compiles without a driver, and gives reasons where no operator was found.
Importing it also registers our operator for Hopper (``hopper``), where NVIDIA has none.

It needs the extra ``cutlass``; nothing else of the library does.
"""

from course_kernels import runtime

try:
    import cutlass.operators  # noqa: F401 (imported here once, so that its absence has one message)
except ImportError as error:
    raise ImportError(
        "course_kernels.cutlass_ops needs NVIDIA's CUTLASS packages (nvidia-cutlass-operators, nvidia-cutlass-dsl): "
        + runtime.INSTALL_EXTRA.format("cutlass")
    ) from error

from course_kernels.cutlass_ops import hopper  # registers the operator
from course_kernels.cutlass_ops.artifact import Compiled, compile, run
from course_kernels.cutlass_ops.compare import Comparison, compare
from course_kernels.cutlass_ops.discovery import Design, Operators, design, discover
from course_kernels.cutlass_ops.operands import NoOperator, arguments
from course_kernels.cutlass_ops.reading import Report, report, side_by_side

__all__ = [
    "Comparison",
    "Compiled",
    "Design",
    "NoOperator",
    "Operators",
    "Report",
    "arguments",
    "compare",
    "compile",
    "design",
    "discover",
    "hopper",
    "report",
    "run",
    "side_by_side",
]
