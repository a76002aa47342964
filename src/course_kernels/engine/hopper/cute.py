"""The kernel in CuTe DSL behind ``grouped_mm``: which products it takes, and in which configuration.

On Hopper it computes modes "m" and "k" of operands that descriptors describe, as a layer of experts and both of its
gradients have them; those of 8 bits with scales. All else is the Triton kernels'.

Tensor cores read 8-bit operands with their depth contiguous. In a gradient the weights lie the other way. Where groups
have many rows, it pays to copy the weights first: 640 to 820 TFLOP/s with the copy, against 160 for the Triton kernel.
In mode "k" groups of 8-bit operands are whole blocks of 128 (``whole_blocks``); where they are not, both operands are
copied, one byte for every two that a quantizer has read before.

``tuning.time_model`` says whether that pays, which backend is the faster, and in which configuration. Where it has no
constants, ``FEW_ROWS`` and ``COPIED_ROWS`` decide for 8-bit operands, which all go to this kernel.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import FP8, dtype_name
from course_kernels.engine.hopper import compiled_cache as cute_cache
from course_kernels.engine.hopper import counters as cute_counters
from course_kernels.engine.product import WINDOW_ROWS, Operands, Problem
from course_kernels.engine.scaling import BLOCK, LINE, ROW, SQUARE, blocks_restart, padded_columns
from course_kernels.engine.tuning import Extents, Gpu, Kind, time_model
from course_kernels.engine.whole_blocks import pack
from course_kernels.kernels.codes import Scales
from course_kernels.kernels.cute_sm90.config import (
    COOPERATIVE,
    LARGE_BLOCK_SCALED,
    PINGPONG,
    CuteConfig,
)

CAPABILITY = (9, 0)
DTYPES = (torch.float16, torch.bfloat16, FP8)  # of operands
BLOCKS, LINES = f"{LINE} {SQUARE}", f"{LINE} {LINE}"  # scales of blocks in mode "m", and in mode "k"
_PACKAGES = ("cutlass", "tvm_ffi")
FEW_ROWS = 64  # up to here, reading the weights takes most of the time, and tiles are low
# Without constants, 8-bit weights whose depth is not contiguous are copied from here on. In the record "block_scaled"
# the copy takes as long as the product of 3,400 rows, so it pays from about 540 rows on.
COPIED_ROWS = 1024


@functools.cache
def installed() -> bool:
    """Whether the packages of the extra ``cutlass`` are there. Imports nothing."""
    return all(importlib.util.find_spec(name) for name in _PACKAGES)


@functools.cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernel runs on a device, and what it needs is installed."""
    return device.type == "cuda" and torch.version.hip is None and runtime.capability(device) == CAPABILITY


def check_available(device: torch.device) -> None:
    """Raise unless the kernel can run on a device.

    Raises:
        ValueError: the device is no Hopper GPU.
        ImportError: a package is missing; the message names the extra.
    """
    if not runs_on(device):
        what = f"{device} has {runtime.capability(device)}" if device.type == "cuda" else f"mat_a is on {device}"
        raise ValueError(
            f"backend='cute' needs a GPU of compute capability 9.0 (H100, H200), and {what}; backend='auto' chooses "
            "what runs"
        )
    if not installed():
        raise ImportError(
            "backend='cute' needs NVIDIA's CUTLASS packages (nvidia-cutlass-dsl, apache-tvm-ffi): pip install "
            '".[cutlass]" where the course is checked out, or "grouped-gemm-course[cutlass]"'
        )


def preferred(problem: Problem, operands: Operands, out: Tensor) -> bool:
    """Whether ``backend="auto"`` asks this kernel first: where it runs, for products that it is expected to compute
    sooner than the Triton kernels."""
    mat_a, device = operands.mat_a, operands.mat_a.device
    if mat_a.dim() != 2 or operands.offs is None or not runs_on(device) or not installed():
        return False
    variant, copied = _variant_of(problem, operands, out)
    if variant is None or copied:
        return copied
    size = tuple(out.shape[-2:])
    return is_expected_faster(variant, problem.rows_per_group, size, mat_a.shape[1], problem.G, gpu_of(device))


class KernelVariant(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        offsets_along: the extent that the groups share out, "m" or "k".
        b_major: what is contiguous in B, "k" or "n".
        operand_bytes: of an element. Operands of one byte have factors, and no others do.
        block_scaled: whether factors are those of blocks, 1x128 of A and 128x128 of B, along "k" 1x128 of both, or of
            rows and columns.
    """

    offsets_along: str
    b_major: str
    operand_bytes: int = 2
    block_scaled: bool = False


def match_variant(
    operands: Operands,
    out: Tensor,
    keep_tail: bool = False,
    accumulate: bool = False,
    scaling: str = ROW,
    whole: bool = False,
) -> KernelVariant | None:
    """The variant that computes a checked product, or None.

    The kernel takes modes "m" and "k", 8-bit operands with scales where the depth of both is contiguous, and 16-bit
    operands; scales of rows and columns, or of blocks as in ``BLOCKS`` and ``LINES``; no bias, no kept tail. It adds to
    float32 results alone: to others the hardware would add rounded products, and round again. Extents of contiguous
    dimensions are multiples of 8, but not that which groups divide; addresses and other strides multiples of 16 bytes;
    scales of blocks may be anywhere. In mode "k" groups of 8-bit operands are whole blocks: that is known where blocks
    do not restart at groups, or where ``whole``.
    """
    mat_a, mat_b, offs, bias, scale_a, scale_b = operands
    if mat_a.dim() != 2 or mat_a.dtype not in DTYPES or bias is not None or keep_tail:
        return None
    if mat_b.dtype != mat_a.dtype:  # float8_e5m2 beside float8_e4m3fn
        return None
    if accumulate and (mat_b.dim() != 2 or out.dtype != torch.float32):
        return None
    along = "m" if mat_b.dim() == 3 else "k"
    eight_bits, block_scaled = mat_a.element_size() == 1, scaling == {"m": BLOCKS, "k": LINES}[along]
    if eight_bits != (scale_a is not None) or not (scaling == ROW or block_scaled):
        return None
    if eight_bits and scaling == ROW and scale_b.data_ptr() % 16:
        return None
    if not (offs.numel() and mat_a.numel() and mat_b.numel() and out.numel()):
        return None
    total = mat_a.shape[0] if along == "m" else mat_b.shape[0]
    if total > WINDOW_ROWS or out.shape[-1] % 8 or not _has_descriptor(out, out.dim() - 1):
        return None
    if along == "k" and eight_bits:
        whole = whole or (block_scaled and not blocks_restart(scale_a, total, offs.shape[0]))
        suits = whole and _has_descriptor(mat_a, 1) and _has_descriptor(mat_b, 0)
        return KernelVariant("k", "k", 1, block_scaled) if suits else None
    if along == "k":
        suits = mat_a.shape[0] % 8 == 0 and _has_descriptor(mat_a, 0) and _has_descriptor(mat_b, 1)
        return KernelVariant("k", "n") if suits else None
    if mat_a.shape[1] % 8 or not _has_descriptor(mat_a, 1):
        return None
    major = {1: "k", 2: "n"}.get(next((dim for dim in (1, 2) if _has_descriptor(mat_b, dim)), 0))
    if major is None or (eight_bits and major == "n"):
        return None
    return KernelVariant("m", major, mat_a.element_size(), block_scaled)


def supports(problem: Problem, operands: Operands, out: Tensor) -> bool:
    """Whether the kernel computes a product; a configuration for the Triton kernels is never for this one."""
    return problem.options.config is None and _variant_of(problem, operands, out)[0] is not None


def plan(problem: Problem, operands: Operands, out: Tensor) -> Plan:
    """The launch for products like this one, in the chosen configuration."""
    mat_a, (variant, copied) = operands.mat_a, _variant_of(problem, operands, out)
    rows = problem.rows_per_group
    config = choose(variant, rows, tuple(out.shape[-2:]), mat_a.shape[1], problem.G, gpu_of(mat_a.device))
    function = _function(config, variant, operands, out, problem.options.accumulate)
    if copied and problem.mode == "k":
        blocks = problem.block_lines is not None
        return PackingPlan(function, blocks, blocks and blocks_restart(operands.scale_a, problem.K, problem.G))
    return (CopyingPlan if copied else Plan)(function, config.dynamic)


def _variant_of(problem: Problem, operands: Operands, out: Tensor) -> tuple[KernelVariant | None, bool]:
    """The variant that computes a product, and whether B, or in mode "k" both operands, have to be copied for it."""
    options, mat_b = problem.options, operands.mat_b
    given = out, options.keep_tail, options.accumulate, options.scaling
    variant = match_variant(operands, *given)
    if variant is None and mat_b.element_size() == 1 and problem.mode == "k" and problem.K:
        depth = padded_columns(problem.K, problem.G) * BLOCK
        a = torch.empty(problem.M, depth, dtype=operands.mat_a.dtype, device="meta")
        b = torch.empty(problem.N, depth, dtype=mat_b.dtype, device="meta").mT
        variant = match_variant(operands._replace(mat_a=a, mat_b=b), *given, whole=True)
        return variant, variant is not None
    if variant is None and mat_b.element_size() == 1 and mat_b.dim() == 3 and _copy_pays(problem, mat_b):
        variant = match_variant(operands._replace(mat_b=depth_contiguous(mat_b, "meta")), *given)
        return variant, variant is not None
    return variant, False


def _copy_pays(problem: Problem, mat_b: Tensor) -> bool:
    """Whether a copy of 8-bit weights and this kernel are expected to be faster than the Triton kernel."""
    kind, rows = Kind("m", "n", 1, _scales(problem.block_lines is not None)), problem.rows_per_group
    estimate = time_model.fastest(kind, Extents(rows, problem.N, problem.K, problem.G), gpu_of(mat_b.device))
    return estimate.backend == "cute" if estimate else rows >= COPIED_ROWS


def depth_contiguous(mat_b: Tensor, device: torch.device | str) -> Tensor:
    """Memory for a copy of 8-bit weights (G, K, N) whose depth is contiguous, at distances of 16 bytes."""
    groups, depth, columns = mat_b.shape
    return torch.empty(groups, columns, -(-depth // 16) * 16, dtype=mat_b.dtype, device=device)[..., :depth].mT


def multiply(
    operands: Operands, out: Tensor, variant: KernelVariant, config: CuteConfig, accumulate: bool = False
) -> None:
    """Write a product to ``out``, or add it, with a given configuration; ``match_variant`` found the variant."""
    with torch.cuda.device(out.device):
        Plan(_function(config, variant, operands, out, accumulate), config.dynamic).run(operands, out)


class Plan:
    """A compiled kernel, to be run on tensors of one variant; ``dynamic`` as in its configuration."""

    def __init__(self, function, dynamic: bool = False):
        self._function, self._dynamic = function, dynamic

    def run(self, operands: Operands, out: Tensor) -> None:
        """Launch on the current stream; zeros to the tail. int64 ends are converted there first: those that int32
        does not hold are wrong in any case."""
        mat_a, mat_b, offs, _, scale_a, scale_b = operands
        if offs.dtype != torch.int32:
            offs = offs.to(torch.int32)
        counter = cute_counters.take(out.device) if self._dynamic else None
        self._function(mat_a, mat_b, out, offs, scale_a, scale_b, counter)


class CopyingPlan(Plan):
    """A compiled kernel that is run on a copy of B."""

    def run(self, operands: Operands, out: Tensor) -> None:
        """Copy and launch, on the current stream."""
        copy = depth_contiguous(operands.mat_b, out.device).copy_(operands.mat_b)
        super().run(operands._replace(mat_b=copy), out)


class PackingPlan(Plan):
    """A compiled kernel that is run on copies of both operands, whose groups are whole blocks; whether blocks have
    scales, and whether they restart at groups there."""

    def __init__(self, function, blocks: bool, restart: bool):
        super().__init__(function)
        self._blocks, self._restart = blocks, restart

    def run(self, operands: Operands, out: Tensor) -> None:
        """Copy and launch, on the current stream."""
        mat_a, mat_b, offs, _, scale_a, scale_b = operands
        a = pack(mat_a, offs, scale_a if self._blocks else None, self._restart)
        b = pack(mat_b.mT, offs, scale_b if self._blocks else None, self._restart)
        if self._blocks:
            scale_a, scale_b = a.scale, b.scale
        super().run(Operands(a.values, b.values.mT, a.ends, None, scale_a, scale_b), out)


def _has_descriptor(tensor: torch.Tensor, contiguous: int) -> bool:
    """Whether a descriptor describes a tensor with one dimension contiguous: 16 bytes divide its address and all its
    other strides, which are positive and have 40 bits."""
    size = tensor.element_size()
    strides = tensor.stride()
    return (
        strides[contiguous] == 1
        and not tensor.data_ptr() % 16
        and all(
            0 < stride * size < 2**40 and not stride * size % 16
            for dim, stride in enumerate(strides)
            if dim != contiguous
        )
    )


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _function(config: CuteConfig, variant: KernelVariant, operands: Operands, out: Tensor, accumulate: bool):
    whole = config.whole_rounds(operands.mat_a.shape[1], variant.block_scaled, variant.offsets_along)
    return _compiled(config, variant, operands.mat_a.dtype, out.dtype, out.device, accumulate, whole)


@functools.cache
def _compiled(
    config: CuteConfig,
    variant: KernelVariant,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: torch.device,
    accumulate: bool = False,
    whole: bool = False,
):
    return cute_cache.compiled(
        config,
        dtype_name(dtype),
        dtype_name(out_dtype),
        offsets_along=variant.offsets_along,
        b_major=variant.b_major,
        scaled=variant.operand_bytes == 1 and not variant.block_scaled,
        accumulate=accumulate,
        block_scaled=variant.block_scaled,
        whole_rounds=whole,
        multiprocessors=_processors(device),
    )


def choose(
    variant: KernelVariant, rows: float, size: tuple[int, int], depth: int, groups: int, gpu: Gpu | None
) -> CuteConfig:
    """The configuration for a product: the one that ``tuning.time_model`` expects to be the fastest.

    Args:
        variant: of the operands.
        rows: of an average group; along "k" its depth.
        size: of the result, rows and columns; along "k" of a group's.
        depth: what a sum is over, where it is the same for all groups.
        groups: their number.
        gpu: the GPU that runs it; None if unknown.
    """
    estimate = time_model.fastest(*_asked(variant, rows, size, depth, groups), gpu, "cute")
    if estimate:
        return estimate.config
    # No estimate: too few rows, or the model was not fitted to such a GPU, or not with 8-bit operands.
    low = variant.offsets_along == "m" and rows <= FEW_ROWS
    if variant.operand_bytes == 1:
        # Half the bytes at twice the rate: more than for 16 bits depends on what a tile reads, so it is wide.
        large = LARGE_BLOCK_SCALED if variant.block_scaled else CuteConfig(128, 192, 128, 2, 4, COOPERATIVE)
        return CuteConfig(64, 128, 128, 1, 8, PINGPONG) if low else large
    return CuteConfig(64, 128, 128, 1, 4, PINGPONG) if low else CuteConfig(128, 192, 64, 2, 4, PINGPONG)


def is_expected_faster(
    variant: KernelVariant, rows: float, size: tuple[int, int], depth: int, groups: int, gpu: Gpu | None
) -> bool:
    """Whether the time model expects this kernel to be faster than the Triton kernels. Without constants, that is
    expected of 8-bit operands. Arguments as for ``choose``."""
    estimate = time_model.fastest(*_asked(variant, rows, size, depth, groups), gpu)
    return estimate.backend == "cute" if estimate else variant.operand_bytes == 1


def _asked(variant: KernelVariant, rows: float, size: tuple[int, int], depth: int, groups: int) -> tuple[Kind, Extents]:
    """Kind and extents of a product, as the time model takes them. Of 8-bit operands along "k" no times are known."""
    scaling = _scales(variant.block_scaled) if variant.operand_bytes == 1 else Scales.NONE
    kind = Kind(variant.offsets_along, variant.b_major, variant.operand_bytes, scaling)
    along_k = variant.offsets_along == "k"
    return kind, Extents(size[0], size[1], rows, groups) if along_k else Extents(rows, size[1], depth, groups)


def _scales(blocks: bool) -> Scales:
    return Scales.BLOCKS if blocks else Scales.LINES


@functools.cache
def gpu_of(device: torch.device) -> Gpu | None:
    """The properties of a GPU that the time model needs; None for a CPU."""
    return Gpu.of(runtime.Device.of(device))
