"""The grouped GEMM course: lessons, exercises, grading, and the `course` command.

Importing it, before Triton, has kernels run in Triton's interpreter where no GPU is visible: in this process and, by
`TRITON_INTERPRET` in the environment, in those that it starts. A value that the user has set is left alone. The
interpreter is repaired where it computes bfloat16 wrongly, see `bfloat16`.

In a notebook: `from gemm_course import check, hint, solution`. `check` starts the process that checks answers, in the
background.
"""

from __future__ import annotations

import os
import signal
import sys


def _end_at_once(*_) -> None:
    os.write(2, b"\ncourse: interrupted\n")
    os._exit(130)


# The command imports torch for a second or two before it can catch anything; "-m" is `python -m gemm_course.cli.app`.
if os.path.basename(sys.argv[0]) in ("course", "-m") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_at_once)  # `app.main` takes it back

from course_kernels import runtime  # noqa: E402

__all__ = ["check", "hint", "solution"]

if runtime.mode() == "interpreter":
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if "triton.language" in sys.modules:  # imported for its compiler: kernels that are defined from now on must run
        runtime.load_triton()
    from gemm_course import bfloat16

    bfloat16.install()


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "hint":
        from gemm_course.notebook.hint import hint

        return hint
    if name == "solution":
        from gemm_course.notebook.solution import solution

        return solution
    from gemm_course.notebook import check  # slow

    check.start()
    return check.check
