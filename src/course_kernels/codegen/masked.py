"""Builds of the masked kernel: whatever ``deepgemm`` would launch for operands like these."""

from __future__ import annotations

import itertools

import torch

from course_kernels import runtime
from course_kernels.codegen.packed import HOPPER, all_through_tma, build_options, device_of, specialized
from course_kernels.codegen.spec import Build
from course_kernels.config import GemmConfig
from course_kernels.dtypes import FP8, FP8_FNUZ, OUT_DTYPES, dtype_name, find_dtype
from course_kernels.engine.options import Options
from course_kernels.engine.scaling import BLOCK
from course_kernels.engine.triton_arguments import prepare
from course_kernels.engine.tuning import Gpu, Kind
from course_kernels.engine.tuning.chooser import all_configs
from course_kernels.engine.tuning.fallback_rules import with_block_scales
from course_kernels.kernels.codes import Scales
from course_kernels.masked.checks import DTYPES, FP8_DTYPES, Call, check_call
from course_kernels.targets import Target
from course_kernels.type_checks import check_flags

SCALES = ("group", "channel", "block")
_ROWS, _EXTENT, _GROUPS = 256, 512, 8  # of the stand-in operands


def build_masked(
    *,
    dtype: str | torch.dtype = "bfloat16",
    out_dtype: str | torch.dtype = "bfloat16",
    scales: str = "group",
    shuffled: bool = False,
    aligned: bool = True,
    w_layout: str = "row",
    config: GemmConfig | None = None,
    target: str | Target = HOPPER,
    groups: int = _GROUPS,
) -> Build:
    """Make the build that ``deepgemm`` launches for operands of this kind.

    Args:
        dtype: of XQ and WQ: "float16", "bfloat16", "float8_e4m3fn" or "float8_e4m3fnuz".
        out_dtype: of Y.
        scales: with 8-bit operands, "group" or "channel" (with factors of rows) or "block".
        shuffled: WQ is in the order of ``shuffle_weight``.
        aligned: the operands satisfy the 16-byte rule.
        w_layout: "row", or "col" where N is contiguous in WQ.
        config: Default: that of ``engine.tuning.choose`` on the target for groups of 256 rows.
        target: the GPU, as for ``packed.build_packed``.
        groups: number of groups, whose next power of two is known at compile time.

    Raises:
        ValueError: an option value that does not exist, or a configuration that is not valid for the kernel.
    """
    check_flags(shuffled=shuffled, aligned=aligned)
    dtype, out_dtype = find_dtype("dtype", dtype, DTYPES), find_dtype("out_dtype", out_dtype, OUT_DTYPES)
    if scales not in SCALES:
        raise ValueError(f"scales must be one of {SCALES}, got {scales!r}")
    if w_layout not in ("row", "col") or (shuffled and w_layout == "col"):
        raise ValueError(f"w_layout must be 'row', or 'col' where not shuffled, got {w_layout!r}")
    call = stand_ins(dtype, out_dtype, scales, aligned, w_layout, shuffled, groups)
    problem, product = check_call(call, Options(config=config), call.Y)
    arguments = prepare(problem, product, call.Y, device_of(target, config))
    signature, constexprs, divisible = specialized("masked", arguments.arguments)
    values = arguments.arguments
    label = f"masked {dtype_name(dtype)}" + f" {scales}" * (dtype in FP8_DTYPES)
    label += f" {'shuffled' if shuffled else w_layout} " + "×".join(str(values[f"BLOCK_{dim}"]) for dim in "MNK")
    label += f" {arguments.options['num_warps']}w {arguments.options['num_stages']}s"
    label += " unaligned" * (not aligned) + " pointers" * (not all_through_tma(values))
    return Build("masked", signature, constexprs, divisible, label=label, **build_options(arguments.options))


def stand_ins(dtype, out_dtype, scales, aligned, w_layout, shuffled, groups) -> Call:
    """Make arguments of a call; their memory is never touched."""

    def batch(rows, cols, kind, whole=False):
        padded = cols + (not aligned and not whole)
        return torch.empty(groups, rows, padded, dtype=kind, device="cpu")[..., :cols]

    x, y = batch(_ROWS, _EXTENT, dtype), batch(_ROWS, _EXTENT, out_dtype)
    w = batch(_EXTENT, _EXTENT, dtype, whole=shuffled)
    sizes = torch.empty(groups, dtype=torch.int32, device="cpu")
    if dtype not in FP8_DTYPES:
        return Call(x, w if w_layout == "row" else w.mT, y, sizes, shuffled=shuffled)
    blocks = _EXTENT // BLOCK
    of_w = {"group": (groups,), "channel": (groups, _EXTENT), "block": (groups, blocks, blocks)}[scales]
    of_x = (groups, _ROWS, blocks if scales == "block" else 1)
    factors = (torch.empty(shape, dtype=torch.float32, device="cpu") for shape in (of_x, of_w))
    return Call(x, w if w_layout == "row" else w.mT, y, sizes, *factors, shuffled)


def shipped_masked(target: Target) -> list[Build]:
    """Every kind of launch of the masked kernel on a target: type × scales × shuffled or not × aligned or not ×
    configuration that ``engine.tuning.choose`` may return there."""
    gpu, builds = Gpu.of(device_of(target, None)), []
    for dtype in dtypes_on(target):
        kinds = SCALES if dtype in FP8_DTYPES else SCALES[:1]
        for scales, shuffled, aligned in itertools.product(kinds, (False, True), (True, False)):
            options = dict(dtype=dtype, scales=scales, shuffled=shuffled, aligned=aligned, target=target)
            uses_tma = " pointers" not in str(build_masked(**options))
            of_kind = Scales.NONE if dtype.itemsize == 2 else Scales.BLOCKS if scales == "block" else Scales.LINES
            limits = dict(capability=target.capability, shared_limit=target.shared_limit)
            for config in all_configs(Kind("masked", "k", dtype.itemsize, of_kind), gpu, uses_tma):
                config = with_block_scales(config) if of_kind == Scales.BLOCKS else config
                fitted = config.fitted("masked", dtype.itemsize, 2, uses_tma=gpu.uses_tma and aligned, **limits)
                if fitted is not None:
                    builds.append(build_masked(config=fitted, **options))
    return list(dict.fromkeys(builds))


def dtypes_on(target: Target) -> tuple[torch.dtype, ...]:
    """Types that ``deepgemm`` multiplies on a target."""
    if target.capability is None:
        return torch.float16, torch.bfloat16, FP8_FNUZ if target.name.startswith("gfx94") else FP8
    if target.capability < runtime.TENSOR_CORE_CAPABILITY:
        return (torch.float16,)
    return DTYPES[:3] if target.capability >= runtime.FP8_CAPABILITY else DTYPES[:2]
