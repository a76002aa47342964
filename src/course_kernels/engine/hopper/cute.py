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
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import FP8, dtype_name
from course_kernels.engine.hopper import compiled_cache as cute_cache
from course_kernels.engine.hopper import counters as cute_counters
from course_kernels.engine.product import WINDOW_ROWS, Operands, Problem
from course_kernels.engine.scaling import BLOCK, LINE, ROW, SQUARE, blocks_restart, padded_columns
from course_kernels.engine.tuning import time_model
from course_kernels.engine.whole_blocks import pack
from course_kernels.kernels.cute_sm90.config import (
    COOPERATIVE,
    LARGE_BLOCK_SCALED,
    PINGPONG,
    CuteConfig,
)
from course_kernels.kernels.cute_sm90.form import Form

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


class Offer(NamedTuple):
    """What this kernel offers for a product.

    Attributes:
        us: the time that the time model expects, in µs, copies included; None where it has no constants.
        asked: the product as ``time_model.fastest`` takes it, with the GPU, so that others can be compared.
        plan: of the arguments with which the offer was asked for, a ``Plan``; compiles the kernel.
    """

    us: float | None
    asked: tuple
    plan: Callable[..., Plan]


def offer(problem: Problem, operands: Operands, out: Tensor, num_sms: int | None = None) -> Offer | None:
    """The offer for a product that is checked; None where this kernel does not compute it, or other kernels are to: a
    configuration for the Triton kernels is never for this one, and some copies of operands do not pay.

    Args:
        problem, operands, out: the product.
        num_sms: SMs that the kernel may take; None for all.
    """
    options, copied, how = problem.options, False, Plan
    if options.config is not None:
        return None
    form = _form_of(operands, out, options.keep_tail, options.accumulate, options.scaling)
    if form is None:
        return None
    if not _is_read(form, operands):
        how, copied = _copying(form, problem, operands), True
        if how is None:
            return None
    extents = problem.rows_per_group, tuple(out.shape[-2:]), problem.K, problem.G
    gpu = gpu_with(out.device, num_sms)
    make = functools.partial(_plan, form, choose(form, *extents, gpu), how, num_sms)
    return expect(form._replace(b_major="n") if copied and form.along == "m" else form, extents, gpu, make)


def expect(form: Form, extents: tuple, gpu: time_model.Gpu | None, plan: Callable[..., Plan]) -> Offer:
    """The offer of a plan for a product of a form; weights of 8 bits whose ``b_major`` is "n" are copied first.
    ``extents`` and ``gpu`` as for ``choose``."""
    asked = *_asked(form, *extents), gpu
    estimate = time_model.fastest(*asked, "cute")
    return Offer(estimate.us if estimate else None, asked, plan)


def match_form(
    operands: Operands, out: Tensor, keep_tail: bool = False, accumulate: bool = False, scaling: str = ROW
) -> Form | None:
    """The form of a checked product that the kernel computes from operands as they are, or None.

    The kernel takes modes "m" and "k", 8-bit operands with scales where the depth of both is contiguous, and 16-bit
    operands; scales of rows and columns, or of blocks as in ``BLOCKS`` and ``LINES``; no bias, no kept tail. It adds to
    float32 results alone: to others the hardware would add rounded products, and round again. Extents of contiguous
    dimensions are multiples of 8, but not that which groups divide; addresses and other strides multiples of 16 bytes;
    scales of blocks may be anywhere. In mode "k" groups of 8-bit operands are whole blocks: that is known where blocks
    do not restart at groups.
    """
    form = _form_of(operands, out, keep_tail, accumulate, scaling)
    return form if form and _is_read(form, operands) else None


def _form_of(operands: Operands, out: Tensor, keep_tail: bool, accumulate: bool, scaling: str) -> Form | None:
    """The form of a product, of operands as they are or of copies; None where the kernel has none."""
    mat_a, mat_b, offs, bias, scale_a, scale_b = operands
    if mat_a.dim() != 2 or offs is None or mat_a.dtype not in DTYPES or bias is not None or keep_tail:
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
    if along == "m" and mat_a.shape[1] % 8:
        return None
    scales = "blocks" if block_scaled else "lines"
    return Form(
        along,
        "k" if eight_bits or (along == "m" and _has_descriptor(mat_b, 1)) else "n",
        operand_bytes=mat_a.element_size(),
        scaling=scales if eight_bits else "none",
        epilogue="add" if accumulate else "store",
        index_bytes=offs.element_size(),
    )


def _is_read(form: Form, operands: Operands) -> bool:
    """Whether a kernel of a form reads operands as they are."""
    mat_a, mat_b, offs, _, scale_a, _ = operands
    if form.along == "m":
        return _has_descriptor(mat_a, 1) and _has_descriptor(mat_b, 1 if form.b_major == "k" else 2)
    if form.operand_bytes == 1:
        whole = form.scaling == "blocks" and not blocks_restart(scale_a, mat_b.shape[0], offs.shape[0])
        return whole and _has_descriptor(mat_a, 1) and _has_descriptor(mat_b, 0)
    return mat_a.shape[0] % 8 == 0 and _has_descriptor(mat_a, 0) and _has_descriptor(mat_b, 1)


def _copying(form: Form, problem: Problem, operands: Operands) -> type[Plan] | None:
    """The plan that copies what the kernel does not read as it is; None where a copy does not help, or does not pay."""
    if form.operand_bytes > 1:
        return None
    if form.along == "k":
        return PackingPlan if padded_columns(problem.K, problem.G) * BLOCK <= WINDOW_ROWS else None
    return CopyingPlan if _has_descriptor(operands.mat_a, 1) and _copy_pays(problem, operands.mat_b) else None


def _plan(
    form: Form, config: CuteConfig, how: type[Plan], num_sms: int | None, problem: Problem, operands: Operands,
    out: Tensor,
) -> Plan:  # fmt: skip
    """The launch for products like this one, in a configuration."""
    if how is PackingPlan:
        form = form._replace(index_bytes=4)  # of the copies' ends
    made = how(_function(config, form, operands, out), clusters_of(config, out.device, num_sms), config.dynamic)
    if how is PackingPlan and problem.block_lines is not None:
        made.blocks, made.restart = True, blocks_restart(operands.scale_a, problem.K, problem.G)
    return made


def _copy_pays(problem: Problem, mat_b: Tensor) -> bool:
    """Whether a copy of 8-bit weights and this kernel are expected to be faster than the Triton kernel."""
    kind, rows = time_model.kind_of_8_bit("n", problem.block_lines is not None), problem.rows_per_group
    estimate = time_model.fastest(kind, rows, problem.N, problem.K, problem.G, gpu_of(mat_b.device))
    return estimate.backend == "cute" if estimate else rows >= COPIED_ROWS


def depth_contiguous(mat_b: Tensor) -> Tensor:
    """Memory for a copy of 8-bit weights (G, K, N) whose depth is contiguous, at distances of 16 bytes."""
    groups, depth, columns = mat_b.shape
    return mat_b.new_empty(groups, columns, -(-depth // 16) * 16)[..., :depth].mT


def multiply(operands: Operands, out: Tensor, form: Form, config: CuteConfig, num_sms: int | None = None) -> None:
    """Write a product to ``out``, or add it, with a given configuration, on so many SMs; ``match_form`` found the
    form."""
    with torch.cuda.device(out.device):
        function = _function(config, form, operands, out)
        Plan(function, clusters_of(config, out.device, num_sms), config.dynamic).run(operands, out)


class Plan:
    """A compiled kernel, to be run on tensors of one form, in so many clusters; ``dynamic`` as in its configuration."""

    def __init__(self, function, clusters: int, dynamic: bool = False):
        self._function, self._clusters, self._dynamic = function, clusters, dynamic

    def run(self, operands: Operands, out: Tensor) -> None:
        """Launch on the current stream; zeros to the tail."""
        mat_a, mat_b, offs, _, scale_a, scale_b = operands
        counter = cute_counters.take(out.device) if self._dynamic else None
        self._function(mat_a, mat_b, out, offs, self._clusters, scale_a, scale_b, counter)


class CopyingPlan(Plan):
    """A compiled kernel that is run on a copy of B."""

    def run(self, operands: Operands, out: Tensor) -> None:
        """Copy and launch, on the current stream."""
        copy = depth_contiguous(operands.mat_b).copy_(operands.mat_b)
        super().run(operands._replace(mat_b=copy), out)


class PackingPlan(Plan):
    """A compiled kernel that is run on copies of both operands, whose groups are whole blocks; whether ``blocks`` have
    scales, and whether they ``restart`` at groups there."""

    blocks = restart = False

    def run(self, operands: Operands, out: Tensor) -> None:
        """Copy and launch, on the current stream."""
        mat_a, mat_b, offs, _, scale_a, scale_b = operands
        a = pack(mat_a, offs, scale_a if self.blocks else None, self.restart)
        b = pack(mat_b.mT, offs, scale_b if self.blocks else None, self.restart)
        if self.blocks:
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


def clusters_of(config: CuteConfig, device: torch.device, num_sms: int | None = None) -> int:
    """Clusters that a launch takes: as many as so many SMs hold, all of the GPU's by default; at least one.

    Raises:
        ValueError: ``num_sms`` is less than 1.
    """
    if num_sms is not None and num_sms < 1:
        raise ValueError(f"num_sms must be at least 1, got {num_sms}")
    processors = _processors(device)
    return max(1, min(processors, num_sms or processors) // config.cluster)


def _function(config: CuteConfig, form: Form, operands: Operands, out: Tensor):
    form = form._replace(whole_rounds=config.whole_rounds(operands.mat_a.shape[1], form))
    return compiled(config, form, operands.mat_a.dtype, out.dtype, out.device)


@functools.cache
def compiled(config: CuteConfig, form: Form, dtype: torch.dtype, out_dtype: torch.dtype, device: torch.device):
    """The kernel for tensors of a form on a device, compiled at most once in a process."""
    return cute_cache.compiled(config, form, dtype_name(dtype), dtype_name(out_dtype))


def choose(
    form: Form, rows: float, size: tuple[int, int], depth: int, groups: int, gpu: time_model.Gpu | None
) -> CuteConfig:
    """The configuration for a product: the one that ``tuning.time_model`` expects to be the fastest.

    Args:
        form: of the product.
        rows: of an average group; along "k" its depth.
        size: of the result, rows and columns; along "k" of a group's.
        depth: what a sum is over, where it is the same for all groups.
        groups: their number.
        gpu: the GPU that runs it; None if unknown.
    """
    estimate = time_model.fastest(*_asked(form, rows, size, depth, groups), gpu, "cute")
    if estimate:
        return estimate.config
    # No estimate: too few rows, or the model was not fitted to such a GPU, or not with 8-bit operands.
    low = form.along == "m" and rows <= FEW_ROWS
    if form.operand_bytes == 1:
        # Half the bytes at twice the rate: more than for 16 bits depends on what a tile reads, so it is wide.
        large = LARGE_BLOCK_SCALED if form.scaling == "blocks" else CuteConfig(128, 192, 128, 2, 4, COOPERATIVE)
        return CuteConfig(64, 128, 128, 1, 8, PINGPONG) if low else large
    return CuteConfig(64, 128, 128, 1, 4, PINGPONG) if low else CuteConfig(128, 192, 64, 2, 4, PINGPONG)


def _asked(form: Form, rows: float, size: tuple[int, int], depth: int, groups: int) -> tuple:
    """Kind and extents of a product, as the time model takes them."""
    if form.along == "k":
        kind = "k,n" if form.operand_bytes > 1 else "k,k fp8"  # of which no times are known
        return kind, size[0], size[1], rows, groups
    kind = f"m,{form.b_major}"
    if form.operand_bytes == 1:
        kind = time_model.kind_of_8_bit(form.b_major, form.scaling == "blocks")
    return kind, rows, size[1], depth, groups


def gpu_with(device: torch.device, num_sms: int | None) -> time_model.Gpu | None:
    """``gpu_of``, with no more than so many SMs."""
    gpu = gpu_of(device)
    return gpu._replace(sms=min(gpu.sms, num_sms)) if gpu and num_sms else gpu


@functools.cache
def gpu_of(device: torch.device) -> time_model.Gpu | None:
    """The properties of a GPU that the time model needs; None for a CPU."""
    return time_model.Gpu.of(runtime.Device.of(device))
