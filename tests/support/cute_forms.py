"""Forms of the kernel in CuTe DSL, by what is special about them."""

from __future__ import annotations

from course_kernels.kernels.cute_sm90.form import Form


def form_for(dtype: str, along: str = "m", b_major: str | None = None, **fields) -> Form:
    """The form of operands of a dtype. By default, B's usual dimension is contiguous."""
    operand_bytes = 1 if dtype.startswith("float8") else 2
    return Form(along, b_major or ("n" if along == "k" and operand_bytes > 1 else "k"), operand_bytes, **fields)
