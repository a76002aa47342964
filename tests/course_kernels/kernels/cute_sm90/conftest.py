"""Code of the Hopper kernel that several tests look at."""

from __future__ import annotations

import functools
from typing import NamedTuple

import pytest


class Compiled(NamedTuple):
    """A compiled kernel."""

    ptx: str
    cubin: bytes


@pytest.fixture(scope="session")
def code_for(tmp_path_factory):
    """The code of a configuration for a form and dtypes, as ``compile_for`` takes them. A kernel is compiled once,
    whichever test asks first, and whether it names the dtype of the result or not. The compiler leaves copies."""
    pytest.importorskip("cutlass", reason="needs the cutlass extra")
    from cutlass import cute
    from cutlass.base_dsl.compiler import DumpDir

    from course_kernels.kernels.cute_sm90.compilation import compile_for

    options = (cute.KeepPTX(True), cute.KeepCUBIN(True), DumpDir(str(tmp_path_factory.mktemp("code"))))

    @functools.cache
    def compiled(config, form, dtype, out_dtype):
        made = compile_for(config, form, dtype, out_dtype, options=options)
        return Compiled(made.__ptx__, made.__cubin__)

    def code(config, form, dtype, out_dtype=None):
        return compiled(config, form, dtype, out_dtype or ("bfloat16" if form.operand_bytes == 1 else dtype))

    return code
