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
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import FP8, dtype_name
from course_kernels.engine.access import flat_rows
from course_kernels.engine.hopper import compiled_cache, counters
from course_kernels.engine.product import Counts, Ends, Problem, Product
from course_kernels.engine.scaling import BLOCK, BLOCKS, LINES, ROW, Lines, blocks_restart, padded_columns
from course_kernels.engine.signature import WINDOW_ROWS
from course_kernels.engine.tuning import time_model
from course_kernels.engine.whole_blocks import pack
from course_kernels.kernels.cute_sm90.config import (
    COOPERATIVE,
    LARGE_BLOCK_SCALED,
    PINGPONG,
    CuteConfig,
)

CAPABILITY = (9, 0)
DTYPES = (torch.float16, torch.bfloat16, FP8)  # of operands
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


def check_available(device: torch.device, name: str = "mat_a") -> None:
    """Raise unless the kernel can run on a device, which the argument ``name`` is on.

    Raises:
        ValueError: the device is no Hopper GPU.
        ImportError: a package is missing; the message names the extra.
    """
    if not runs_on(device):
        what = f"{device} has {runtime.capability(device)}" if device.type == "cuda" else f"{name} is on {device}"
        raise ValueError(
            f"backend='cute' needs a GPU of compute capability 9.0 (H100, H200), and {what}; backend='auto' chooses "
            "what runs"
        )
    if not installed():
        raise ImportError(
            "backend='cute' needs NVIDIA's CUTLASS packages (nvidia-cutlass-dsl, apache-tvm-ffi): pip install "
            '".[cutlass]" where the course is checked out, or "grouped-gemm-course[cutlass]"'
        )


def preferred(problem: Problem, product: Product, out: Tensor) -> bool:
    """Whether ``backend="auto"`` asks this kernel first: where it runs, for products that it is expected to compute
    sooner than the Triton kernels."""
    device = product.a.device
    if problem.mode not in ("m", "k", "masked") or not runs_on(device) or not installed():
        return False
    variant, copied = _variant_of(problem, product, out)
    if variant is None or copied:
        return copied
    return is_expected_faster(variant, *_extents(problem), gpu_of(device))


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


class Views(NamedTuple):
    """The tensors that the kernel is given, in its order. Counted groups follow each other along M, each with all the
    rows that it has room for."""

    a: Tensor
    b: Tensor
    c: Tensor
    offs: Tensor
    scale_a: Tensor | None
    scale_b: Tensor | None

    @classmethod
    def of(cls, product: Product, out: Tensor) -> Views | None:
        """Of a checked product; None where counted groups are not equally far apart. Factors of blocks whose groups are
        not are copied: they are small beside A."""
        a, b, rows, scaling, *_ = product
        scale_a, scale_b = scaling.a, scaling.b
        if type(rows) is not Counts:
            return cls(a, b, out, product.offs, scale_a, scale_b)
        a, out = flat_rows(a), flat_rows(out)
        if a is None or out is None:
            return None
        if type(scaling) is Lines:
            scale_a = scale_a.reshape(-1)
            scale_b = scale_b[:, 0] if is_of_groups(scale_b) else scale_b
        elif scale_a is not None:
            flat = flat_rows(scale_a)
            scale_a = flat_rows(scale_a.contiguous()) if flat is None else flat
        return cls(a, b, out, rows.sizes, scale_a, scale_b)


def is_of_groups(scale_b: Tensor) -> bool:
    """Whether one factor serves all columns of a group."""
    return scale_b.stride(1) == 0


def match_variant(product: Product, out: Tensor, whole: bool = False) -> KernelVariant | None:
    """The variant that computes a checked product, or None.

    The kernel takes modes "m" and "k", 8-bit operands with scales where the depth of both is contiguous, and 16-bit
    operands; scales of rows and columns, or of blocks as in ``BLOCKS`` and ``LINES``; no bias, no kept tail. It adds to
    float32 results alone: to others the hardware would add rounded products, and round again. Extents of contiguous
    dimensions are multiples of 8, but not that which groups divide; addresses and other strides multiples of 16 bytes;
    scales of blocks may be anywhere. In mode "k" groups of 8-bit operands are whole blocks: that is known where blocks
    do not restart at groups, or where ``whole``. Rows that are counted are those of groups at equal distances.
    """
    epilogue, scaling = product.epilogue, product.scaling.name or ROW
    if product.shuffled or epilogue.bias is not None or epilogue.keep_tail or product.offs is None:
        return None
    views = Views.of(product, out)
    if views is None:
        return None
    a, b, c, offs, scale_a, scale_b = views
    if a.dim() != 2 or a.dtype not in DTYPES or b.dtype != a.dtype:  # float8_e5m2 beside float8_e4m3fn
        return None
    if epilogue.accumulates and (b.dim() != 2 or c.dtype != torch.float32):
        return None
    along = "m" if b.dim() == 3 else "k"
    eight_bits, block_scaled = a.element_size() == 1, scaling == {"m": BLOCKS, "k": LINES}[along]
    if eight_bits != (scale_a is not None) or not (scaling == ROW or block_scaled):
        return None
    if (
        eight_bits
        and scaling == ROW
        and (scale_b.data_ptr() % 16 or not (scale_a.is_contiguous() and scale_b.is_contiguous()))
    ):
        return None
    if not (offs.numel() and a.numel() and b.numel() and c.numel()):
        return None
    total = a.shape[0] if along == "m" else b.shape[0]
    if total > WINDOW_ROWS or c.shape[-1] % 8 or not _has_descriptor(c, c.dim() - 1):
        return None
    if along == "k" and eight_bits:
        whole = whole or (block_scaled and not blocks_restart(scale_a, total, offs.shape[0]))
        suits = whole and _has_descriptor(a, 1) and _has_descriptor(b, 0)
        return KernelVariant("k", "k", 1, block_scaled) if suits else None
    if along == "k":
        suits = a.shape[0] % 8 == 0 and _has_descriptor(a, 0) and _has_descriptor(b, 1)
        return KernelVariant("k", "n") if suits else None
    if a.shape[1] % 8 or not _has_descriptor(a, 1):
        return None
    major = {1: "k", 2: "n"}.get(next((dim for dim in (1, 2) if _has_descriptor(b, dim)), 0))
    if major is None or (eight_bits and major == "n"):
        return None
    return KernelVariant("m", major, a.element_size(), block_scaled)


def supports(problem: Problem, product: Product, out: Tensor) -> bool:
    """Whether the kernel computes a product; a configuration for the Triton kernels is never for this one."""
    return problem.options.config is None and _variant_of(problem, product, out)[0] is not None


def plan(problem: Problem, product: Product, out: Tensor) -> Plan:
    """The launch for products like this one, in the chosen configuration. Where the rows that are expected of counted
    groups fit into one tile, the weights are read once, and L2 does not keep them. The time model does not know of
    that: it was fitted to kernels that let L2 keep what they read."""
    variant, copied = _variant_of(problem, product, out)
    config = choose(variant, *_extents(problem), gpu_of(out.device))
    if problem.mode == "masked":
        config = replace(config, stream_b=problem.rows_per_group <= config.tile_m)
    function = _function(config, variant, product, out)
    if copied and problem.mode == "k":
        blocks = problem.block_lines is not None
        return PackingPlan(function, blocks, blocks and blocks_restart(product.scaling.a, problem.K, problem.G))
    return (CopyingPlan if copied else Plan)(function, config.dynamic)


def _extents(problem: Problem) -> tuple[float, tuple[int, int], int, int]:
    """A product as ``choose`` takes it: rows of an average group, size of the result, depth, groups."""
    rows = problem.G * problem.M if problem.mode == "masked" else problem.M
    return problem.rows_per_group, (rows, problem.N), problem.K, problem.G


def _variant_of(problem: Problem, product: Product, out: Tensor) -> tuple[KernelVariant | None, bool]:
    """The variant that computes a product, and whether B, or in mode "k" both operands, have to be copied for it."""
    b = product.b
    variant = match_variant(product, out)
    if variant is None and b.element_size() == 1 and problem.mode == "k" and problem.K:
        depth = padded_columns(problem.K, problem.G) * BLOCK
        packed_a = torch.empty(problem.M, depth, dtype=product.a.dtype, device="meta")
        packed_b = torch.empty(problem.N, depth, dtype=b.dtype, device="meta").mT
        variant = match_variant(product._replace(a=packed_a, b=packed_b), out, whole=True)
        return variant, variant is not None
    if variant is None and b.element_size() == 1 and problem.mode == "m" and _copy_pays(problem, b):
        variant = match_variant(product._replace(b=depth_contiguous(b, "meta")), out)
        return variant, variant is not None
    return variant, False


def _copy_pays(problem: Problem, b: Tensor) -> bool:
    """Whether a copy of 8-bit weights and this kernel are expected to be faster than the Triton kernel."""
    kind, rows = time_model.kind_of_8_bit("n", problem.block_lines is not None), problem.rows_per_group
    estimate = time_model.fastest(kind, rows, problem.N, problem.K, problem.G, gpu_of(b.device))
    return estimate.backend == "cute" if estimate else rows >= COPIED_ROWS


def depth_contiguous(mat_b: Tensor, device: torch.device | str) -> Tensor:
    """Memory for a copy of 8-bit weights (G, K, N) whose depth is contiguous, at distances of 16 bytes."""
    groups, depth, columns = mat_b.shape
    return torch.empty(groups, columns, -(-depth // 16) * 16, dtype=mat_b.dtype, device=device)[..., :depth].mT


def multiply(product: Product, out: Tensor, variant: KernelVariant, config: CuteConfig) -> None:
    """Write a product to ``out``, or add it, with a given configuration; ``match_variant`` found the variant."""
    with torch.cuda.device(out.device):
        Plan(_function(config, variant, product, out), config.dynamic).run(product, out)


class Plan:
    """A compiled kernel, to be run on tensors of one variant; ``dynamic`` as in its configuration."""

    def __init__(self, function, dynamic: bool = False):
        self._function, self._dynamic = function, dynamic

    def run(self, product: Product, out: Tensor) -> None:
        """Launch on the current stream; zeros to the tail. int64 ends are converted there first: those that int32
        does not hold are wrong in any case."""
        a, b, c, offs, scale_a, scale_b = Views.of(product, out)
        if offs.dtype != torch.int32:
            offs = (offs.clamp(0, a.shape[0]) if type(product.rows) is Counts else offs).to(torch.int32)
        counter = counters.take(out.device) if self._dynamic else None
        self._function(a, b, c, offs, scale_a, scale_b, counter)


class CopyingPlan(Plan):
    """A compiled kernel that is run on a copy of B."""

    def run(self, product: Product, out: Tensor) -> None:
        """Copy and launch, on the current stream."""
        copy = depth_contiguous(product.b, out.device).copy_(product.b)
        super().run(product._replace(b=copy), out)


class PackingPlan(Plan):
    """A compiled kernel that is run on copies of both operands, whose groups are whole blocks; whether blocks have
    scales, and whether they restart at groups there."""

    def __init__(self, function, blocks: bool, restart: bool):
        super().__init__(function)
        self._blocks, self._restart = blocks, restart

    def run(self, product: Product, out: Tensor) -> None:
        """Copy and launch, on the current stream."""
        scaling, offs = product.scaling, product.offs
        a = pack(product.a, offs, scaling.a if self._blocks else None, self._restart)
        b = pack(product.b.mT, offs, scaling.b if self._blocks else None, self._restart)
        if self._blocks:
            scaling = scaling._replace(a=a.scale, b=b.scale)
        super().run(product._replace(a=a.values, b=b.values.mT, rows=Ends(a.ends), scaling=scaling), out)


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


def _function(config: CuteConfig, variant: KernelVariant, product: Product, out: Tensor):
    whole = config.whole_rounds(product.a.shape[-1], variant.block_scaled, variant.offsets_along)
    counted = type(product.rows) is Counts
    of_groups = counted and type(product.scaling) is Lines and is_of_groups(product.scaling.b)
    of = product.a.dtype, out.dtype, out.device, product.epilogue.accumulates, whole, counted, of_groups
    return _compiled(config, variant, *of)


@functools.cache
def _compiled(
    config: CuteConfig, variant: KernelVariant, dtype: torch.dtype, out_dtype: torch.dtype, device: torch.device,
    accumulate: bool = False, whole: bool = False, masked: bool = False, group_scales: bool = False,
):  # fmt: skip
    return compiled_cache.compiled(
        config,
        dtype_name(dtype),
        dtype_name(out_dtype),
        offsets_along=variant.offsets_along,
        b_major=variant.b_major,
        scaled=variant.operand_bytes == 1 and not variant.block_scaled,
        accumulate=accumulate,
        block_scaled=variant.block_scaled,
        masked=masked,
        group_scales=group_scales,
        whole_rounds=whole,
        multiprocessors=_processors(device),
    )


def choose(
    variant: KernelVariant, rows: float, size: tuple[int, int], depth: int, groups: int, gpu: time_model.Gpu | None
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
    variant: KernelVariant, rows: float, size: tuple[int, int], depth: int, groups: int, gpu: time_model.Gpu | None
) -> bool:
    """Whether the time model expects this kernel to be faster than the Triton kernels. Without constants, that is
    expected of 8-bit operands. Arguments as for ``choose``."""
    estimate = time_model.fastest(*_asked(variant, rows, size, depth, groups), gpu)
    return estimate.backend == "cute" if estimate else variant.operand_bytes == 1


def _asked(variant: KernelVariant, rows: float, size: tuple[int, int], depth: int, groups: int) -> tuple:
    """Kind and extents of a product, as the time model takes them."""
    if variant.offsets_along == "k":
        kind = "k,n" if variant.operand_bytes > 1 else "k,k fp8"  # of which no times are known
        return kind, size[0], size[1], rows, groups
    kind = f"m,{variant.b_major}"
    if variant.operand_bytes == 1:
        kind = time_model.kind_of_8_bit(variant.b_major, variant.block_scaled)
    return kind, rows, size[1], depth, groups


@functools.cache
def gpu_of(device: torch.device) -> time_model.Gpu | None:
    """The properties of a GPU that the time model needs; None for a CPU."""
    return time_model.Gpu.of(runtime.Device.of(device))
