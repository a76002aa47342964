"""Builds of the jagged kernels: whatever ``grouped_gemm_jagged`` would launch in Triton for operands like these."""

from __future__ import annotations

import torch

from course_kernels.codegen.packed import specialize
from course_kernels.codegen.spec import Build
from course_kernels.config import GemmConfig
from course_kernels.dtypes import OUT_DTYPES, dtype_name, find_dtype
from course_kernels.targets import Target

_MODULE = "course_kernels.kernels.jagged"
# Extents of stand-ins: rows a group for each of the three configurations, and extents that are multiples of 16.
_ROWS, _EXTENT, _GROUPS = (8, 32, 512), 512, 8


def build_jagged(
    kernel: str = "persistent",
    *,
    dtype: str | torch.dtype = "bfloat16",
    b_dtype: str | torch.dtype | None = None,
    b_layout: str = "row",
    config: GemmConfig | None = None,
    rows_per_group: int = 512,
    aligned: bool = True,
    precision: str = "ieee",
    shared_limit: int | None = None,
) -> Build:
    """The specialisation that implementation "triton" launches for products of this kind.

    Args:
        kernel: "simple" or "persistent".
        dtype, b_dtype: of A and B; B's is A's by default.
        b_layout: "row" (K, N) or "col", a transposed weight.
        config: Default: the one that is chosen for this many rows a group.
        aligned: rows of A and lines of B are multiples of 16 elements.
        precision: "ieee", or "tf32" for a float32 result.
        shared_limit: of the target, for the chosen configuration.

    Raises:
        ValueError: an option value that does not exist.
    """
    from course_kernels.jagged import triton_kernels

    if kernel not in triton_kernels.KERNELS:
        raise ValueError(f"kernel must be one of {tuple(triton_kernels.KERNELS)}, got {kernel!r}")
    if b_layout not in ("row", "col"):
        raise ValueError(f"b_layout must be 'row' or 'col', got {b_layout!r}")
    dtype = find_dtype("dtype", dtype, OUT_DTYPES)
    b_dtype = dtype if b_dtype is None else find_dtype("b_dtype", b_dtype, OUT_DTYPES)
    extent, total = _EXTENT + (not aligned), rows_per_group * _GROUPS
    a = torch.empty(total, extent, dtype=dtype, device="cpu")
    b = torch.empty(extent, extent, dtype=b_dtype, device="cpu")
    out = torch.empty(total, extent, dtype=torch.promote_types(dtype, b_dtype), device="cpu")
    offsets = torch.empty(_GROUPS + 1, dtype=torch.int32, device="cpu")
    if config is None:
        config = triton_kernels.choose_config(total, _GROUPS, extent, out.element_size(), shared_limit)
    operands = (a, b if b_layout == "row" else b.mT, offsets, out)
    arguments = triton_kernels.launch_arguments(*operands, config, precision)
    function = triton_kernels.KERNELS[kernel]
    names = " ".join(dict.fromkeys((dtype_name(dtype), dtype_name(b_dtype))))
    label = f"jagged {kernel} {names} row/{b_layout} " + "×".join(map(str, config.block))
    label += (
        f" {config.num_warps}w {config.num_stages}s" + " tf32" * (precision == "tf32") + " unaligned" * (not aligned)
    )
    return Build(
        f"{_MODULE}:{function.fn.__name__}",
        *specialize(function, arguments),
        config.num_warps,
        config.num_stages,
        label,
    )


def shipped_jagged(target: Target) -> list[Build]:
    """What implementation "triton" launches on a target with 16-bit operands and an aligned, row-major B: each kernel
    in each configuration."""
    return [
        build_jagged(kernel, rows_per_group=rows, shared_limit=target.shared_limit)
        for kernel in ("simple", "persistent")
        for rows in _ROWS
    ]
