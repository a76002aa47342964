"""What to compile: one kernel with the types and compile-time values of one kind of launch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from course_kernels import runtime
from course_kernels.codegen.masked import build_masked, shipped_masked
from course_kernels.codegen.packed import HOPPER, build_packed, shipped_packed
from course_kernels.codegen.spec import KERNELS, LAYOUTS, PACKED_KERNELS, Build
from course_kernels.config import GemmConfig
from course_kernels.dtypes import (
    FP8,
    IN_DTYPES,
    OUT_DTYPES,
    PRECISIONS,
    TRITON_TYPES,
    default_out_dtype,
    dtype_name,
    find_dtype,
)
from course_kernels.kernels.codes import Record
from course_kernels.lists.cost_model import candidates
from course_kernels.targets import TARGETS, Target, find_target
from course_kernels.type_checks import check_flags


def build(
    kernel: str = "tma",
    *,
    dtype: str | torch.dtype = "float16",
    out_dtype: str | torch.dtype | None = None,
    a_layout: str = "row",
    b_layout: str = "row",
    c_layout: str = "row",
    config: GemmConfig | None = None,
    aligned: bool = True,
    precision: str = "ieee",
    record: bool = False,
    target: str | Target = HOPPER,
    **packed: Any,
) -> Build:
    """The specialisation that ``group_gemm``, or ``grouped_mm``, launches for problems of this kind.

    Args:
        kernel: "naive", "round_robin" or "tma"; or "contiguous" or "transposed", whose options are those of
            ``packed.build_packed``; or "masked", with those of ``masked.build_masked`` alone.
        dtype: of A and B: "float16", "bfloat16", "float32" or "float8_e4m3fn".
        out_dtype: of C. Default: as ``group_gemm`` chooses it.
        a_layout, b_layout, c_layout: "row" (last stride 1), "col" (first stride 1) or "any"; A and B of "tma" cannot
            be "any".
        config: block sizes and the rest. Default: the first of ``cost_model.candidates``.
        aligned: the matrices satisfy the 16-byte rule. For "tma" this is about C alone: A and B always do.
        precision: as for ``group_gemm``.
        record: with the log of programs, SMs and times.
        target: the GPU, whose launch this is; makes no difference to the kernels of the list API.

    Raises:
        ValueError: an option value that does not exist.
        TypeError: an option that the kernel does not have, a configuration that is no ``GemmConfig``, or an option that
            must be True or False and is neither.

    Notes:
        Compile-time values come from ``launch.compile_time_arguments``, as in the launch itself. Triton specialises
        further by values of run-time arguments, such as a count of exactly one problem.
    """
    from course_kernels.lists import launch  # imports Triton, which takes a second

    check_flags(aligned=aligned, record=record)
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {KERNELS}, got {kernel!r}")
    if config is not None and not isinstance(config, GemmConfig):
        raise TypeError(f"config must be a GemmConfig, got {type(config).__name__}")
    target = find_target(target)
    if kernel == "masked":
        others = dict(a_layout=a_layout, b_layout=b_layout, c_layout=c_layout, precision=precision, record=record)
        changed = [name for name, value in others.items() if value not in ("row", "ieee", False)]
        if changed:
            raise TypeError(f"kernel 'masked' has no options {changed}")
        options = dict(config=config, aligned=aligned, target=target)
        return build_masked(dtype=dtype, out_dtype=out_dtype or "bfloat16", **options, **packed)
    if kernel in PACKED_KERNELS:
        if record:
            raise ValueError(f"record must be False for {kernel!r}, which keeps no log")
        options = dict(a_layout=a_layout, b_layout=b_layout, c_layout=c_layout, aligned=aligned, precision=precision)
        options |= dict(config=config, target=target)
        return build_packed(kernel, dtype=dtype, out_dtype=out_dtype, **options, **packed)
    if packed:
        raise TypeError(f"kernel {kernel!r} has no options {sorted(packed)}")
    for name, layout in (("a_layout", a_layout), ("b_layout", b_layout), ("c_layout", c_layout)):
        if layout not in LAYOUTS or (layout == "any" and kernel == "tma" and name != "c_layout"):
            allowed = "'row' or 'col' for kernel 'tma'" if kernel == "tma" else "'row', 'col' or 'any'"
            raise ValueError(f"{name} must be {allowed}, got {layout!r}")
    dtype = find_dtype("dtype", dtype)
    out_dtype = default_out_dtype(dtype) if out_dtype is None else find_dtype("out_dtype", out_dtype, OUT_DTYPES)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}")
    config = config or candidates(kernel, dtype.itemsize, precision)[0].config
    layouts = (a_layout, b_layout, c_layout)
    constexprs = launch.compile_time_arguments(
        kernel, config, dtype=dtype, out_dtype=out_dtype, layouts=tuple(LAYOUTS[layout] for layout in layouts),
        aligned=aligned and "any" not in layouts and (kernel != "tma" or c_layout == "row"),
        precision=precision, record_level=Record.TIME if record else Record.OFF,
    )  # fmt: skip
    if kernel == "naive":
        signature, divisible = _naive_arguments(dtype, out_dtype, layouts, aligned, constexprs)
    else:
        signature = dict(
            a_ptrs="*i64", b_ptrs="*i64", c_ptrs="*i64", sizes_ptr="*i32", strides_ptr="*i64", num_problems="i32",
            total_tiles="i32", counter_ptr="*i32",
        )  # fmt: skip
        divisible = ()
    if record:
        signature["log_ptr"] = "*i64"
    else:
        constexprs["log_ptr"] = None
    block = "×".join(map(str, config.block))
    name = dtype_name(dtype) + ("" if precision == "ieee" else f" {precision}")
    label = f"{kernel} {name} {a_layout}/{b_layout} {block}"
    label += "" if config.schedule == "round_robin" else f" {config.schedule}"
    label += "" if aligned else " unaligned"
    return Build(kernel, signature, constexprs, divisible, config.num_warps, config.num_stages, label)


def _naive_arguments(dtype, out_dtype, layouts, aligned, constexprs) -> tuple[dict, tuple[str, ...]]:
    """Signature and 16-divisible arguments of the naive kernel. As in a launch, strides of 1 become constexprs."""
    operand, result = f"*{TRITON_TYPES[dtype]}", f"*{TRITON_TYPES[out_dtype]}"
    signature = {"a_ptr": operand, "b_ptr": operand, "c_ptr": result, "M": "i32", "N": "i32", "K": "i32"}
    for (row, col), layout in zip((("am", "ak"), ("bk", "bn"), ("cm", "cn")), layouts, strict=True):
        for stride, unit_layout in ((f"stride_{row}", "col"), (f"stride_{col}", "row")):
            if layout == unit_layout:
                constexprs[stride] = 1
            else:
                signature[stride] = "i32"
    return signature, tuple(signature) if aligned else ()


def supports(target: str | Target, kernel: str, dtype: torch.dtype, precision: str = "ieee") -> bool:
    """Whether the library runs this kernel on operands of this dtype on a target, by ``runtime``'s rules."""
    capability = find_target(target).capability
    if kernel == "tma" and (capability or (0, 0)) < runtime.DESCRIPTOR_CAPABILITY:
        return False
    if dtype == FP8:
        return (capability or (0, 0)) >= runtime.FP8_CAPABILITY
    if capability is None:
        return precision == "ieee"
    return capability >= runtime.TENSOR_CORE_CAPABILITY or (dtype != torch.bfloat16 and precision == "ieee")


def shipped(target: str | Target, kernels: Sequence[str] = KERNELS) -> list[Build]:
    """Every kind of launch that ``group_gemm``, ``grouped_mm`` and ``deepgemm`` choose on a target: kernel × dtype
    (float32 as IEEE and TF32) × layouts of A and B × aligned or not × configuration. C is row-major and of the default
    dtype."""
    target = find_target(target)
    builds = shipped_masked(target) if "masked" in kernels else []
    for kernel, dtype in itertools.product([name for name in kernels if name != "masked"], IN_DTYPES):
        for precision in ("ieee", "tf32") if dtype == torch.float32 else ("ieee",):
            if not supports(target, kernel, dtype, precision):
                continue
            if kernel in PACKED_KERNELS:
                builds += shipped_packed(target, kernel, dtype, precision)
                continue
            sides = ("row", "col") if kernel == "tma" else ("row", "col", "any")
            for a, b, aligned in itertools.product(sides, sides, (True, False)):
                if aligned and "any" in (a, b):
                    continue  # never aligned
                fitting = candidates(
                    kernel, dtype.itemsize, precision, out_itemsize=default_out_dtype(dtype).itemsize,
                    shared_limit=target.shared_limit, aligned=aligned, capability=target.capability,
                )  # fmt: skip
                options = dict(dtype=dtype, a_layout=a, b_layout=b, aligned=aligned, precision=precision)
                builds += [build(kernel, config=candidate.config, **options) for candidate in fitting]
    return builds


def claims(spec: Build) -> tuple[str, ...]:
    """Names of the targets on which ``group_gemm`` or ``grouped_mm`` chooses this build."""
    kernels = [spec.kernel] if spec.kernel in KERNELS else []
    return tuple(name for name in TARGETS if spec in set(shipped(name, kernels)))
