"""Triton, imported for this process's mode: every kernel takes ``triton`` and ``tl`` from here."""

from course_kernels import runtime

runtime.load_triton()

import triton  # noqa: E402 (after load_triton, which decides between compiler and interpreter)
import triton.language as tl  # noqa: E402

__all__ = ["tl", "triton"]
