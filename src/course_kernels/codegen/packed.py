"""Builds of the packed kernels: whatever ``packed`` would launch for operands like these."""

from __future__ import annotations

import inspect
import itertools

import torch

from course_kernels.codegen.spec import Build
from course_kernels.config import GemmConfig
from course_kernels.dtypes import (
    IN_DTYPES,
    OUT_DTYPES,
    SCALED_DTYPES,
    TRITON_TYPES,
    dtype_name,
    find_dtype,
)
from course_kernels.engine.options import Options
from course_kernels.engine.product import Product
from course_kernels.engine.scaling import ROW, block_scale_shapes
from course_kernels.engine.triton_arguments import prepare
from course_kernels.engine.tuning import Gpu, Kind
from course_kernels.engine.tuning.chooser import all_configs
from course_kernels.kernels.codes import Scales
from course_kernels.packed import group_sums
from course_kernels.packed.checks import problem_of
from course_kernels.runtime import Device
from course_kernels.targets import Target, find_target, has_descriptors
from course_kernels.type_checks import check_flags

MODES = {"contiguous": ("m", "n", "batch"), "transposed": ("k",)}
# Layouts of A and B that training and inference meet: weights are stored (N, K) or (K, N), gradients transpose. What a
# layer stores comes first.
LAYOUTS = {
    "m": (("row", "col"), ("row", "row")),
    "n": (("row", "row"), ("col", "row")),
    "k": (("col", "row"), ("row", "row")),
    "batch": (("row", "col"), ("row", "row"), ("col", "row")),
}
# Extents of the stand-in operands: as for all that are multiples of 16, Triton specialises for no others but 1.
_EXTENT, _GROUPS = 512, 8
_SMS = 132  # of GPUs for which ``targets`` has no number
HOPPER = "sm_90"


def build_packed(
    kernel: str,
    *,
    mode: str | None = None,
    dtype: str | torch.dtype = "bfloat16",
    out_dtype: str | torch.dtype | None = None,
    a_layout: str = "row",
    b_layout: str = "row",
    c_layout: str = "row",
    config: GemmConfig | None = None,
    aligned: bool = True,
    precision: str = "ieee",
    target: str | Target = HOPPER,
    bias: bool = False,
    keep_tail: bool = False,
    groups: int = _GROUPS,
    accumulate: bool = False,
    scaling: str = ROW,
    b_dtype: str | torch.dtype | None = None,
) -> Build:
    """Make the build that ``grouped_mm`` launches for operands of this kind, by ``engine.triton_arguments.prepare``.

    Args:
        kernel: "contiguous" or "transposed".
        mode: the ragged dimension: "m", "n" or "batch" (none) for "contiguous", "k" for "transposed". Default: the
            first of them.
        dtype: of A and B; "float8_e4m3fn" comes with scales.
        config: Default: the choice of ``engine.tuning.choose`` on the target, for groups of 512 × 512 × 512.
        target: the GPU, which decides about descriptors and the configuration.
        bias: with a bias of the operands' dtype.
        keep_tail: do not write the tail's zeros.
        groups: number of groups, whose next power of two is known at compile time.
        accumulate: add to the result's memory; mode "k".
        scaling: of float8_e4m3fn, "row" or one of ``scaling.BLOCK_SCALINGS`` of the mode, whose blocks restart at
            every group in mode "k".
        b_dtype: of B, if it differs from A's: "float8_e4m3fn" and "float8_e5m2" can be mixed.
        others: as for ``builds.build``, but layouts are those within a group and cannot be "any".

    Raises:
        ValueError: an option value that does not exist, or a configuration that is not valid for the kernel.
    """
    check_flags(aligned=aligned, bias=bias, keep_tail=keep_tail, accumulate=accumulate)
    mode = MODES[kernel][0] if mode is None else mode
    if mode not in MODES[kernel]:
        raise ValueError(f"mode must be one of {MODES[kernel]} for kernel {kernel!r}, got {mode!r}")
    for name, layout in (("a_layout", a_layout), ("b_layout", b_layout), ("c_layout", c_layout)):
        if layout not in ("row", "col"):
            raise ValueError(f"{name} must be 'row' or 'col' for kernel {kernel!r}, got {layout!r}")
    allowed = dict.fromkeys((*IN_DTYPES, *SCALED_DTYPES))
    dtype = find_dtype("dtype", dtype, allowed)
    b_dtype = dtype if b_dtype is None else find_dtype("b_dtype", b_dtype, allowed)
    out_dtype = torch.bfloat16 if out_dtype is None and dtype.itemsize == 1 else out_dtype or dtype
    out_dtype = find_dtype("out_dtype", out_dtype, OUT_DTYPES)
    if precision not in ("ieee", "tf32") or (precision == "tf32" and dtype != torch.float32):
        raise ValueError(f"precision must be 'ieee', or 'tf32' for float32, got {precision!r} for {dtype}")
    layouts = a_layout, b_layout, c_layout
    tensors, out = stand_ins(mode, dtype, out_dtype, layouts, aligned, bias, groups, scaling, b_dtype)
    product = Product.packed(*tensors, scaling=scaling, keep_tail=keep_tail, accumulate=accumulate)
    problem = problem_of(product, Options(out_dtype, config=config))._replace(precision=precision)
    prepared = prepare(problem, product, out, device_of(target, config))
    signature, constexprs, divisible = specialized(kernel, prepared.arguments)
    name = dtype_name(dtype) + f" {dtype_name(b_dtype)}" * (b_dtype != dtype)
    name += "" if precision == "ieee" else f" {precision}"
    stored = [prepared.arguments[f"BLOCK_{dim}"] for dim in "MNK"]
    label = f"{kernel} {mode} {name} {a_layout}/{b_layout} " + "×".join(map(str, stored))
    label += f" {prepared.options['num_warps']}w {prepared.options['num_stages']}s"
    label += (
        f" {scaling}" * (scaling != ROW)
        + " bias" * bias
        + " accumulate" * accumulate
        + " unaligned" * (not aligned)
        + " pointers" * (not all_through_tma(prepared.arguments))
    )
    return Build(kernel, signature, constexprs, divisible, label=label, **build_options(prepared.options))


def device_of(target: str | Target, config: GemmConfig | None) -> Device:
    """Make a GPU of a kind. For a given configuration, the assembler checks whether it fits into shared memory."""
    target = find_target(target)
    sms = target.sms or _SMS
    arch = target.capability or target.name
    limit = target.shared_limit if config is None else None
    return Device(arch, target.capability, sms, limit, has_descriptors(target.name))


def all_through_tma(arguments: dict) -> bool:
    """Whether all of a launch's operands and its result go through descriptors."""
    return all(hasattr(arguments[name], "block_shape") for name in ("a", "b", "c_desc"))


def stand_ins(mode, dtype, out_dtype, layouts, aligned, bias, groups, scaling=ROW, b_dtype=None):
    """Make operands in the order of ``Product.packed``, and a result. Their memory is never touched."""
    one, all_, some = _EXTENT, _EXTENT * groups, (groups, _EXTENT, _EXTENT)
    shapes = {
        "m": ((all_, one), some, (all_, one)),
        "n": (some, (one, all_), (one, all_)),
        "k": ((one, all_), (all_, one), some),
        "batch": (some, some, some),
    }[mode]

    def matrix(shape, layout, dtype):
        *batch, rows, cols = shape if layout == "row" else (*shape[:-2], shape[-1], shape[-2])
        padded = torch.empty(*batch, rows, cols + (not aligned), dtype=dtype, device="cpu")
        return padded[..., :cols] if layout == "row" else padded[..., :cols].mT

    a, b, c = (matrix(*each) for each in zip(shapes, layouts, (dtype, b_dtype or dtype, out_dtype)))
    offs = None if mode == "batch" else torch.empty(groups, dtype=torch.int32, device="cpu")
    sides = (None, None)
    if scaling != ROW:
        extents = (all_ if mode == "m" else one, all_ if mode == "n" else one, all_ if mode == "k" else one, groups)
        sides = [shapes[0] for shapes in block_scale_shapes(mode, extents, scaling)]
    elif dtype.itemsize == 1:
        sides = {"m": (all_, (groups, one)), "n": ((groups, one), all_)}.get(mode, ((groups, one), (groups, one)))
    scales = (side and torch.empty(side, dtype=torch.float32, device="cpu") for side in sides)
    of_bias = out_dtype if dtype.itemsize == 1 else dtype
    bias = torch.empty(groups, one, dtype=of_bias, device="cpu") if bias else None
    return (a, b, offs, bias, *scales), c


def build_group_sums(
    dtype: str | torch.dtype = "bfloat16", layout: str = "row", total: int = 4096, accumulate: bool = False
) -> list[Build]:
    """The specialisations that ``group_sums`` launches, in order.

    Args:
        dtype: of the matrix.
        layout: of the matrix, "row" or "col".
        total: its rows: few take one launch, many take two.
        accumulate: add to the result's memory.
    """
    check_flags(accumulate=accumulate)
    dtype = find_dtype("dtype", dtype, OUT_DTYPES)
    shape = (total, _EXTENT) if layout == "row" else (_EXTENT, total)
    matrix = torch.empty(shape, dtype=dtype, device="cpu")
    matrix = matrix if layout == "row" else matrix.mT
    offs = torch.empty(_GROUPS, dtype=torch.int32, device="cpu")
    out = torch.empty(_GROUPS, _EXTENT, dtype=torch.float32, device="cpu")
    builds = []
    for launch in group_sums.prepare(matrix, offs, out, accumulate):
        name = f"course_kernels.kernels.group_sums:{launch.kernel}"
        label = f"{launch.kernel} {dtype_name(dtype)} {layout} {total}" + " accumulate" * accumulate
        builds.append(Build(name, *specialized(name, launch.arguments), num_stages=3, label=label))
    return builds


def build_options(options: dict[str, int]) -> dict[str, object]:
    """A launch's compiler options as arguments of a ``Build``."""
    others = {name: value for name, value in options.items() if name not in ("num_warps", "num_stages")}
    return {name: value for name, value in options.items() if name not in others} | {"options": others}


def specialized(kernel: str, arguments: dict) -> tuple[dict, dict, tuple[str, ...]]:
    """``specialize`` of a packed kernel by its name."""
    from course_kernels.kernels import contiguous, group_sums, masked, transposed

    function = {
        "contiguous": contiguous.contiguous_kernel,
        "transposed": transposed.transposed_kernel,
        "masked": masked.masked_kernel,
        "course_kernels.kernels.group_sums:sum_items_kernel": group_sums.sum_items_kernel,
        "course_kernels.kernels.group_sums:add_items_kernel": group_sums.add_items_kernel,
    }[kernel]
    return specialize(function, arguments)


def specialize(function, arguments: dict) -> tuple[dict, dict, tuple[str, ...]]:
    """Signature, compile-time values and 16-divisible arguments, as Triton's own launch makes them of arguments."""
    parameters = inspect.signature(function.fn).parameters
    signature, constexprs, divisible = {}, {}, []
    for name, value in arguments.items():
        if "constexpr" in str(parameters[name].annotation) or value is None:
            constexprs[name] = value
        elif hasattr(value, "block_shape"):
            signature[name] = f"tensordesc<{TRITON_TYPES[value.base.dtype]}{list(value.block_shape)}>"
        elif isinstance(value, torch.Tensor):
            signature[name] = "*" + (TRITON_TYPES.get(value.dtype) or {4: "i32", 8: "i64"}[value.element_size()])
            divisible += [name] * (value.data_ptr() % 16 == 0)
        elif value == 1:
            constexprs[name] = 1
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            divisible += [name] * (value % 16 == 0)
    return signature, constexprs, tuple(divisible)


def shipped_packed(target: Target, kernel: str, dtype: torch.dtype, precision: str) -> list[Build]:
    """Every kind of launch of a packed kernel on a target for one type: mode × layouts × aligned or not ×
    configuration that ``engine.tuning.choose`` may return there."""
    assert dtype in IN_DTYPES
    scales = Scales.LINES if dtype.itemsize == 1 else Scales.NONE
    gpu, builds = Gpu.of(device_of(target, None)), []
    for mode in MODES[kernel]:
        for (a, b), aligned in itertools.product(LAYOUTS[mode], (True, False)):
            options = dict(mode=mode, dtype=dtype, a_layout=a, b_layout=b, aligned=aligned, precision=precision)
            options["target"] = target
            uses_tma = " pointers" not in str(build_packed(kernel, **options))
            major = "k" if b == "col" or (mode == "k" and dtype.itemsize == 1) else "n"
            kind = Kind("m" if mode == "n" else mode, major, dtype.itemsize, scales, precision)
            for config in all_configs(kind, gpu, uses_tma):
                limits = dict(capability=target.capability, shared_limit=target.shared_limit, uses_tma=uses_tma)
                fitted = config.fitted(kernel, dtype.itemsize, **limits)
                if fitted is not None:
                    builds.append(build_packed(kernel, config=fitted, **options))
    return list(dict.fromkeys(builds))
