"""One table of dtypes: names, bytes, defaults, and the error for a dtype that kernels do not take."""

import pytest
import torch

from course_kernels.dtypes import (
    FP8,
    IN_DTYPES,
    OUT_DTYPES,
    TRITON_TYPES,
    TYPE_BYTES,
    default_out_dtype,
    dtype_name,
    find_dtype,
    type_name,
)
from course_kernels.kernels.language import tl


def test_names_and_bytes():
    assert TYPE_BYTES == {"float16": 2, "bfloat16": 2, "float32": 4, "tf32": 4, "float8_e4m3fn": 1}
    assert [type_name(dtype) for dtype in IN_DTYPES] == ["float16", "bfloat16", "float32", "float8_e4m3fn"]
    assert type_name(torch.float32, "tf32") == "tf32"
    assert type_name(torch.float16, "tf32") == dtype_name(torch.float16) == "float16"


def test_triton_knows_every_name():
    types = [tl.float16, tl.bfloat16, tl.float32, tl.float8e4nv]
    assert [tl.dtype(TRITON_TYPES[dtype]) for dtype in IN_DTYPES] == types


def test_results_of_8_bit_operands_are_wider():
    assert [default_out_dtype(dtype) for dtype in IN_DTYPES] == [*OUT_DTYPES, torch.bfloat16]


def test_a_dtype_is_found_by_name_or_as_it_is():
    assert find_dtype("dtype", "bfloat16") == find_dtype("dtype", torch.bfloat16) == torch.bfloat16
    assert find_dtype("dtype", "float8_e4m3fn") == FP8


@pytest.mark.parametrize("value", ["float64", "no_such_dtype", torch.int8, None, 16])
def test_other_dtypes_are_refused_by_name(value):
    with pytest.raises(ValueError, match="side must be one of float16, bfloat16, float32, got"):
        find_dtype("side", value, OUT_DTYPES)
