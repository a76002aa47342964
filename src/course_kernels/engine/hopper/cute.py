"""The kernel in CuTe DSL for Hopper: the products that it takes, and its configuration for each.

It computes modes "m" and "k" and counted rows, if descriptors can describe the operands, as in a layer of experts and
both of its gradients. 8-bit operands need scales. The Triton kernels compute everything else.

Tensor cores read 8-bit operands with their depth contiguous. In a gradient the columns of the weights are contiguous.
If groups have many rows, copying the weights first pays: 640 to 820 TFLOP/s with the copy, 160 for the Triton kernel.
In mode "k" groups of 8-bit operands are whole blocks of 128 (``whole_blocks``). Other operands are both copied into
that form: one byte for every two that a quantizer has read before.

``tuning.time_model`` decides whether a copy of weights pays, which backend is faster, and the configuration. Without
its constants, 8-bit operands go to this kernel, with tiles by ``FEW_ROWS``; copies pay from ``COPIED_ROWS`` on.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import FP8, dtype_name
from course_kernels.engine.hopper import compiled_cache, counters
from course_kernels.engine.hopper.views import Views
from course_kernels.engine.product import Counts, Ends, Gated, GatedBackward, Problem, Product
from course_kernels.engine.scale_blocks import blocks_restart, padded_columns
from course_kernels.engine.scaling import BLOCK, BLOCKS, LINES, ROW
from course_kernels.engine.signature import WINDOW_ROWS
from course_kernels.engine.tuning import Extents, Gpu, Kind, time_model
from course_kernels.engine.whole_blocks import pack
from course_kernels.kernels.codes import Scales
from course_kernels.kernels.cute_sm90.config import (
    CONFIGS,
    COOPERATIVE,
    LARGE_BLOCK_SCALED,
    PINGPONG,
    CuteConfig,
)
from course_kernels.kernels.cute_sm90.form import GATED, GATED_BACKWARD, GATED_PRE, Form

CAPABILITY = (9, 0)
DTYPES = (torch.float16, torch.bfloat16, FP8)  # of operands
_PACKAGES = ("cutlass", "tvm_ffi")
FEW_ROWS = 64  # up to here, reading the weights takes most of the time, so tiles are low
# Without constants, 8-bit weights whose depth is not contiguous are copied from here on. In the record "block_scaled"
# the copy takes as long as the product of 3,400 rows, so it pays from about 540 rows on.
COPIED_ROWS = 1024


@functools.cache
def installed() -> bool:
    """Whether the packages of the extra ``cutlass`` are installed. Imports nothing."""
    return all(importlib.util.find_spec(name) for name in _PACKAGES)


@functools.cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernel runs on a device, and what it needs is installed."""
    return device.type == "cuda" and torch.version.hip is None and runtime.capability(device) == CAPABILITY


def check_available(device: torch.device) -> None:
    """Raise unless the kernel can run on a device, which the operands are on.

    Raises:
        ValueError, ImportError: the device is no Hopper GPU; a package is missing, and the message names the extra.
    """
    if not runs_on(device):
        what = f"{device} has {runtime.capability(device)}" if device.type == "cuda" else f"operands are on {device}"
        raise ValueError(
            f"backend='cute' needs a GPU of compute capability 9.0 (H100, H200), and {what}; backend='auto' chooses "
            "what runs"
        )
    if not installed():
        raise ImportError(
            "backend='cute' needs NVIDIA's CUTLASS packages (nvidia-cutlass-dsl, apache-tvm-ffi): "
            + runtime.INSTALL_EXTRA.format("cutlass")
        )


class Offer(NamedTuple):
    """The offer to compute a product with this kernel.

    Attributes:
        us: the time that the time model expects, in µs, copies included; None where it has no constants.
        asked: arguments of ``time_model.fastest`` for the product, to compare with other backends.
        config: the configuration.
        plan: makes the plan, which compiles the kernel.
    """

    us: float | None
    asked: tuple
    config: CuteConfig
    plan: Callable[[], Plan]


def offer(problem: Problem, product: Product, out: Tensor) -> Offer | None:
    """Make the offer for a checked product. None if this kernel does not compute it, if the options have a
    configuration (for the Triton kernels), or if copying operands does not pay. The offered configuration is that for
    all SMs, also with ``num_sms``."""
    views = None if problem.options.config is not None else Views.of(product, out)
    form = views and _form_of(product, views)
    if not form:
        return None
    how = Plan if _is_read(form, views) else _copying(form, problem, views)
    if how is None:
        return None
    rows = problem.G * problem.M if problem.mode == "masked" else problem.M
    extents, gpu = (problem.rows_per_group, (rows, problem.N), problem.K, problem.G), gpu_of(out.device)
    config = choose(form, *extents, gpu)
    # Before the copy, the columns of 8-bit weights are contiguous.
    asked = *_asked(form._replace(b_major="n") if how is CopyingPlan else form, *extents), gpu
    estimate = _fastest(form, *asked)
    make = functools.partial(_plan, form, config, how, problem, product, out)
    return Offer(estimate.us if estimate else None, asked, config, make)


def match_form(product: Product, out: Tensor) -> Form | None:
    """The form of a checked product if the kernel computes it from the operands as they are, else None.

    The kernel takes modes "m" and "k", 8-bit operands with scales where the depth of both is contiguous, and 16-bit
    operands; scales of rows and columns, or of blocks as in ``BLOCKS`` and ``LINES``; no kept tail, nothing of low
    rank. With 16-bit operands it gathers rows of A in mode "m", and lines of one operand in mode "k"; in mode "m" it
    adds a bias to rows with ends, and has the epilogues with an activation, for 16-bit results; where gate and up take
    turns, B has its depth contiguous, and no argument is stored. It adds to float32 results alone: with other dtypes
    the hardware would round twice. Extents of contiguous dimensions are multiples of 8, except the extent that groups
    divide; addresses and other strides are multiples of 16 bytes, except for scales of blocks, and a bias. In mode "k"
    groups of 8-bit operands must be whole blocks, as where blocks do not restart at groups. Counts are of equal groups.
    """
    views = Views.of(product, out)
    form = views and _form_of(product, views)
    return form if form and _is_read(form, views) else None


def _form_of(product: Product, views: Views) -> Form | None:
    """The form of a product, from operands as they are or from copies; None if the kernel has no such form."""
    a, b, c, offs, scale_a, scale_b, layer = views
    epilogue, scaling = product.epilogue, product.scaling.name or ROW
    activates = isinstance(epilogue, Gated | GatedBackward)
    if a.dtype not in DTYPES or epilogue.low_rank is not None or product.shuffled:
        return None
    if epilogue.bias is not None and (type(product.rows) is not Ends or b.dim() == 2):
        return None
    if (activates or layer is not None) and not _is_of_a_layer(product, views):
        return None
    in_pieces = type(product.rows) is Ends and product.rows.pieces is not None
    if (epilogue.keep_tail or in_pieces) and not activates:
        return None
    if a.dim() != 2 or b.dtype != a.dtype:  # a ragged N; float8_e5m2 beside float8_e4m3fn
        return None
    if epilogue.accumulates and (b.dim() != 2 or c.dtype != torch.float32):
        return None
    along, counted = "k" if b.dim() == 2 else "m", type(product.rows) is Counts
    eight_bits, block_scaled = a.element_size() == 1, scaling == {"m": BLOCKS, "k": LINES}[along]
    if eight_bits != (scale_a is not None) or not (scaling == ROW or block_scaled):
        return None
    if (
        eight_bits
        and scaling == ROW
        and (scale_b.data_ptr() % 16 or not (scale_a.is_contiguous() and scale_b.is_contiguous()))
    ):
        return None
    if not (offs.numel() and a.numel() and b.numel() and c.numel()) or (along == "m" and a.shape[1] % 8):
        return None
    index = product.index
    total = c.shape[0] if along == "m" else b.shape[0] if index is None else index.shape[0]
    if total > WINDOW_ROWS or c.shape[-1] % 8 or not _has_descriptor(c, c.dim() - 1):
        return None
    scales = "none" if not eight_bits else "blocks" if block_scaled else "groups" if scale_b.dim() == 1 else "lines"
    return Form(
        along,
        "k" if eight_bits or (along == "m" and _has_descriptor(b, 1)) else "n",
        operand_bytes=a.element_size(),
        rows="counts" if counted else "pieces" if in_pieces else "ends",
        scaling=scales,
        epilogue=_epilogue_of(product),
        index_bytes=offs.element_size(),
        load="tma" if index is None else "gather" if product.rows.operand == "a" else "gather_b",
        activation=epilogue.activation if activates else None,
        bias_bytes=0 if epilogue.bias is None else epilogue.bias.element_size(),
    )


def _epilogue_of(product: Product) -> str:
    """The name of a product's epilogue."""
    epilogue = product.epilogue
    if type(epilogue) is Gated:
        return GATED if epilogue.pre is None else GATED_PRE
    return GATED_BACKWARD if type(epilogue) is GatedBackward else "add" if epilogue.accumulates else "store"


def _is_of_a_layer(product: Product, views: Views) -> bool:
    """Whether the kernel can compute a layer's product: of operands of 16 bits, whose other tensors it can describe."""
    c, (index, pre, weights, activated, dots, *_) = views.c, views.layer or (None,) * 5
    described = [each for each in (pre, activated) if each is not None]
    return (
        views.a.element_size() == 2
        and (product.b.dim() == 3 or type(product.epilogue) not in (Gated, GatedBackward))
        and (product.b.dim() == 2 or product.rows.operand == "a")
        and (c.element_size() == 2 or type(product.epilogue) not in (Gated, GatedBackward))
        and all(each.dtype == c.dtype and _has_descriptor(each, each.dim() - 1) for each in described)
        and all(each is None or each.is_contiguous() for each in (index, weights))
        and (dots is None or dots.stride(1) == 1)
        and (pre is None or not product.epilogue.interleaved)  # pre is stored and read with the gate's columns first
    )


def _is_read(form: Form, views: Views) -> bool:
    """Whether a kernel of a form can read the operands as they are."""
    a, b = views.a, views.b
    if form.along == "m":
        return _has_descriptor(a, 1) and _has_descriptor(b, 1 if form.b_major == "k" else b.dim() - 1)
    if form.operand_bytes == 1:
        whole = form.scaling == "blocks" and not blocks_restart(views.scale_a, b.shape[0], views.offs.shape[0])
        return whole and _has_descriptor(a, 1) and _has_descriptor(b, 0)
    return a.shape[0] % 8 == 0 and _has_descriptor(a, 0) and _has_descriptor(b, 1)


def _copying(form: Form, problem: Problem, views: Views) -> type[Plan] | None:
    """The plan class that copies what the kernel cannot read as it is; None if a copy does not help or does not pay."""
    if form.operand_bytes > 1 or form.rows == "counts":
        return None
    if form.along == "k":
        return PackingPlan if padded_columns(problem.K, problem.G) * BLOCK <= WINDOW_ROWS else None
    return CopyingPlan if _has_descriptor(views.a, 1) and _copy_pays(problem, views.b) else None


def _plan(
    form: Form, config: CuteConfig, how: type[Plan], problem: Problem, product: Product, out: Tensor
) -> Plan:  # fmt: skip
    """Make the plan for products like this one, in a configuration. If the expected rows of a counted group fit into
    one tile, the weights are read once, so L2 does not keep them. The time model ignores this: it was fitted to
    kernels that keep weights in L2."""
    if how is PackingPlan:
        form = form._replace(index_bytes=4)  # the copies' ends are int32
    if problem.mode == "masked":
        config = replace(config, stream_b=problem.rows_per_group <= config.tile_m)
    clusters = clusters_of(config, out.device, problem.options.num_sms)
    made = how(_function(config, form, product, out), clusters, config.dynamic)
    if how is PackingPlan and problem.block_lines is not None:
        made.blocks, made.restart = True, blocks_restart(product.scaling.a, problem.K, problem.G)
    return made


def _copy_pays(problem: Problem, b: Tensor) -> bool:
    """Whether a copy of 8-bit weights plus this kernel is expected to be faster than the Triton kernel."""
    kind, rows = Kind("m", "n", 1, _scales(problem.block_lines is not None)), problem.rows_per_group
    estimate = time_model.fastest(kind, Extents(rows, problem.N, problem.K, problem.G), gpu_of(b.device))
    return estimate.backend == "cute" if estimate else rows >= COPIED_ROWS


def depth_contiguous(mat_b: Tensor) -> Tensor:
    """Allocate a copy of 8-bit weights (G, K, N), depth contiguous, other strides multiples of 16 bytes."""
    groups, depth, columns = mat_b.shape
    return mat_b.new_empty(groups, columns, -(-depth // 16) * 16)[..., :depth].mT


def multiply(product: Product, out: Tensor, form: Form, config: CuteConfig, num_sms: int | None = None) -> None:
    """Write a product to ``out``, or add it, with a given configuration, on ``num_sms`` SMs; ``form`` comes from
    ``match_form``."""
    with torch.cuda.device(out.device):
        function = _function(config, form, product, out)
        Plan(function, clusters_of(config, out.device, num_sms), config.dynamic).run(product, out)


class Plan:
    """A compiled kernel for tensors of one form, and its number of clusters; ``dynamic`` as in its configuration."""

    def __init__(self, function, clusters: int, dynamic: bool = False):
        self._function, self._clusters, self._dynamic = function, clusters, dynamic

    def run(self, product: Product, out: Tensor) -> None:
        """Launch on the current stream. Writes zeros to the tail, and nothing to rows that do not count."""
        a, b, c, offs, scale_a, scale_b, layer = Views.of(product, out)
        counter = counters.take(out.device) if self._dynamic else None
        more = () if layer is None else (layer,)
        self._function(a, b, c, offs, self._clusters, scale_a, scale_b, counter, *more)


class CopyingPlan(Plan):
    """A compiled kernel that runs on a copy of B."""

    def run(self, product: Product, out: Tensor) -> None:
        """Copy B and launch, on the current stream."""
        super().run(product._replace(b=depth_contiguous(product.b).copy_(product.b)), out)


class PackingPlan(Plan):
    """A compiled kernel that runs on copies of both operands, whose groups are whole blocks. ``blocks``: the scales are
    those of blocks. ``restart``: in the originals, blocks restart at every group."""

    blocks = restart = False

    def run(self, product: Product, out: Tensor) -> None:
        """Copy both operands and launch, on the current stream."""
        scaling, offs = product.scaling, product.offs
        a = pack(product.a, offs, scaling.a if self.blocks else None, self.restart)
        b = pack(product.b.mT, offs, scaling.b if self.blocks else None, self.restart)
        if self.blocks:
            scaling = scaling._replace(a=a.scale, b=b.scale)
        super().run(product._replace(a=a.values, b=b.values.mT, rows=Ends(a.ends), scaling=scaling), out)


def _has_descriptor(tensor: torch.Tensor, contiguous: int) -> bool:
    """Whether a descriptor can describe a tensor, with a given dimension contiguous. The address and all other strides
    are multiples of 16 bytes; these strides are positive and below 2**40 bytes."""
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
    """The number of clusters of a launch: as many as ``num_sms`` SMs hold (default: all SMs), at least one.

    Raises:
        ValueError: ``num_sms`` is less than 1.
    """
    if num_sms is not None and num_sms < 1:
        raise ValueError(f"num_sms must be at least 1, got {num_sms}")
    processors = _processors(device)
    return max(1, min(processors, num_sms or processors) // config.cluster)


def _function(config: CuteConfig, form: Form, product: Product, out: Tensor):
    form = form._replace(whole_rounds=config.whole_rounds(product.a.shape[-1], form))
    return compiled(config, form, product.a.dtype, out.dtype, out.device)


@functools.cache
def compiled(config: CuteConfig, form: Form, dtype: torch.dtype, out_dtype: torch.dtype, device: torch.device):
    """The kernel for tensors of a form on a device, compiled at most once in a process."""
    return compiled_cache.compiled(config, form, dtype_name(dtype), dtype_name(out_dtype))


def choose(form: Form, rows: float, size: tuple[int, int], depth: int, groups: int, gpu: Gpu | None) -> CuteConfig:
    """The configuration for a product: the one that ``tuning.time_model`` expects to be the fastest.

    Args:
        form: of the product.
        rows: of an average group; along "k" its depth.
        size: of the result, rows and columns; along "k" of a group's.
        depth: K where groups are along M; not used along "k".
        groups: their number.
        gpu: the GPU that runs it; None if unknown.
    """
    estimate = _fastest(form, *_asked(form, rows, size, depth, groups), gpu)
    if estimate:
        return estimate.config if form.activation is None else estimate.config.fitted(form)
    # No estimate: too few rows, or the model was not fitted to such a GPU, or not with 8-bit operands.
    low = form.along == "m" and rows <= FEW_ROWS
    if form.operand_bytes == 1:
        # Half the bytes at twice the rate: reads matter more than with 16 bits, so the tile is wide.
        large = LARGE_BLOCK_SCALED if form.scaling == "blocks" else CuteConfig(128, 192, 128, 2, 4, COOPERATIVE)
        return CuteConfig(64, 128, 128, 1, 8, PINGPONG) if low else large
    found = CuteConfig(64, 128, 128, 1, 4, PINGPONG) if low else CuteConfig(128, 192, 64, 2, 4, PINGPONG)
    return next(config for each in (found, *CONFIGS) if (config := each.fitted(form)).why_not(form) is None)


def _fastest(form: Form, kind: Kind, extents: Extents, gpu: Gpu | None) -> time_model.Estimate | None:
    """The fastest estimate of this kernel whose configuration a form can have. Of another activation than the measured
    one, and where constants are those of products alone, the columns of gate and up count, not the epilogue."""
    if form.activation is None:
        return time_model.fastest(kind, extents, gpu, "cute")
    found = (each for each in time_model.ranking(kind, extents, gpu) if each.backend == "cute")
    return next((each for each in found if each.config.fitted(form).why_not(form) is None), None)


def _asked(form: Form, rows: float, size: tuple[int, int], depth: int, groups: int) -> tuple[Kind, Extents]:
    """Kind and extents of a product for the time model, which has no times of 8-bit operands along "k"."""
    scaling = Scales.NONE if form.operand_bytes > 1 else _scales(form.scaling == "blocks")
    extents = Extents(size[0], size[1], rows, groups) if form.along == "k" else Extents(rows, size[1], depth, groups)
    return Kind(form.along, form.b_major, form.operand_bytes, scaling, fused=form.fused), extents


def _scales(blocks: bool) -> Scales:
    return Scales.BLOCKS if blocks else Scales.LINES


@functools.cache
def gpu_of(device: torch.device) -> Gpu | None:
    """The properties of a GPU that the time model needs; None for a CPU."""
    return Gpu.of(runtime.Device.of(device))
