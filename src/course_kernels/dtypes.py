"""What kernels multiply: dtypes and their names, precisions, the largest extent, and modes by rank."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch

FP8 = torch.float8_e4m3fn
FP8_E5M2 = torch.float8_e5m2  # of gradients: a wider range and fewer digits
FP8_FNUZ = torch.float8_e4m3fnuz  # of AMD's gfx942
OUT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
IN_DTYPES = (*OUT_DTYPES, FP8)
SCALED_DTYPES = (FP8, FP8_E5M2)  # of operands with scales
# How float32 operands are multiplied: in full, or with 10 bits of mantissa on tensor cores.
Precision: TypeAlias = Literal["ieee", "tf32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
# Triton's names. ``tl.dtype(name)`` is the type itself.
TRITON_TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", FP8: "fp8e4nv", FP8_FNUZ: "fp8e4b8",
    FP8_E5M2: "fp8e5",
}  # fmt: skip
# Kernels count rows, columns and K in 32 bits, up to the end of the block that holds the last one.
MAX_EXTENT = 2**31 - 2**16 - 1
# Ranks of A and B in a packed product → the extent that the groups share out, or "batch".
MODE_OF_RANKS = {(2, 3): "m", (3, 2): "n", (2, 2): "k", (3, 3): "batch"}
MODES = tuple(MODE_OF_RANKS.values())


def dtype_name(dtype: torch.dtype) -> str:
    """The name without its module: "float16" for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def type_name(dtype: torch.dtype, precision: str = "ieee") -> str:
    """Name of a dtype and precision in tables: "tf32" for float32 multiplied in TF32, else the dtype's own."""
    return "tf32" if dtype == torch.float32 and precision == "tf32" else dtype_name(dtype)


# Name in tables → bytes of an element.
TYPE_BYTES = {type_name(dtype, precision): dtype.itemsize for precision in reversed(PRECISIONS) for dtype in IN_DTYPES}


def default_out_dtype(dtype: torch.dtype) -> torch.dtype:
    """The result's dtype where none is given: the operands' own, and bfloat16 for 8-bit operands."""
    return torch.bfloat16 if dtype.itemsize == 1 else dtype


def find_dtype(name: str, value: str | torch.dtype, allowed=IN_DTYPES) -> torch.dtype:
    """A dtype, also by its name; ValueError, naming the argument, for one that is not allowed."""
    found = getattr(torch, value, None) if isinstance(value, str) else value
    if found not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(dtype_name, allowed))}, got {value!r}")
    return found
