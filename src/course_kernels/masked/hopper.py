"""The kernel in CuTe DSL behind ``deepgemm``: which products it takes on Hopper, and in which configuration.

It is the kernel of ``grouped_mm`` with groups at equal distances. It takes plain weights, of 16 bits, or of 8 bits with
factors for rows and lines, or for blocks. Shuffled weights are the Triton kernel's.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import dtype_name
from course_kernels.engine import product as packed
from course_kernels.engine.hopper import compiled_cache as cute_cache
from course_kernels.engine.hopper import counters as cute_counters
from course_kernels.engine.hopper import cute
from course_kernels.engine.hopper.cute import KernelVariant
from course_kernels.engine.scaling import ROW
from course_kernels.kernels.codes import Scales
from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.masked.problem import Operands, Problem, flat_rows


def check_available(device: torch.device) -> None:
    """Raise unless the kernel can run on a device; as ``engine.hopper.cute``, in the words of ``deepgemm``.

    Raises:
        ValueError: the device is no Hopper GPU.
        ImportError: a package is missing.
    """
    try:
        cute.check_available(device)
    except ValueError as error:
        raise ValueError(str(error).replace("mat_a", "XQ")) from None


def preferred(problem: Problem, operands: Operands) -> bool:
    """Whether ``backend="auto"`` asks this kernel first: where it runs, for products that the time model expects it to
    compute sooner than the Triton kernel. The model's constants are those of ``grouped_mm``."""
    device = operands.XQ.device
    if not cute.runs_on(device) or not cute.installed():
        return False
    variant = match_variant(problem, operands)
    return variant is not None and cute.is_expected_faster(variant, *_extents(problem), cute.gpu_of(device))


def match_variant(problem: Problem, operands: Operands) -> KernelVariant | None:
    """The variant that computes a product, or None: as for ``grouped_mm``, and rows of all groups are equally far apart
    in XQ and Y. (If the factors of X are not, they are copied.)"""
    options = problem.options
    if options.shuffled or options.config is not None:
        return None
    blocks = problem.scales == Scales.BLOCKS
    arguments = _flat(operands, blocks)
    if arguments is None:
        return None
    a, b, c, sizes, scale_a, scale_b = arguments
    if not blocks and not all(scale is None or scale.is_contiguous() for scale in (scale_a, scale_b)):
        return None
    scaling = cute.BLOCKS if blocks else ROW
    return cute.match_variant(packed.Operands(a, b, sizes, None, scale_a, scale_b), c, scaling=scaling)


def supports(problem: Problem, operands: Operands) -> bool:
    """Whether the kernel computes a product; a configuration for the Triton kernel is never for this one."""
    return match_variant(problem, operands) is not None


def plan(problem: Problem, operands: Operands) -> Plan:
    """The launch for products like this one, in the configuration for the rows that are expected. Where they fit into
    one tile, the weights are read once, and L2 does not keep them. The time model does not know of that: it was fitted
    to kernels that let L2 keep what they read."""
    variant, device = match_variant(problem, operands), operands.XQ.device
    config = cute.choose(variant, *_extents(problem), cute.gpu_of(device))
    config = replace(config, stream_b=problem.rows <= config.tile_m)
    of_groups = not variant.block_scaled and _has_group_scales(operands)
    whole = config.whole_rounds(problem.K, variant.block_scaled)
    function = compiled(config, variant, problem.dtype, operands.Y.dtype, of_groups, runtime.num_sms(device), whole)
    return Plan(function, variant.block_scaled, config.dynamic)


def _extents(problem: Problem) -> tuple[int, tuple[int, int], int, int]:
    """A product as ``cute.choose`` takes it: rows of an average group, size of the result, depth, groups."""
    return problem.rows, (problem.G * problem.max_M, problem.N), problem.K, problem.G


class Plan:
    """A compiled kernel, to be run on tensors of one variant; ``dynamic`` as in its configuration."""

    def __init__(self, function, block_scaled: bool = False, dynamic: bool = False):
        self._function, self._block_scaled, self._dynamic = function, block_scaled, dynamic

    def run(self, operands: Operands) -> None:
        """Launch on the current stream. int64 sizes are clamped and converted there first."""
        a, b, c, sizes, scale_a, scale_b = _flat(operands, self._block_scaled)
        if sizes.dtype != torch.int32:
            sizes = sizes.clamp(0, operands.XQ.shape[1]).to(torch.int32)
        self._function(a, b, c, sizes, scale_a, scale_b, cute_counters.take(c.device) if self._dynamic else None)


def _flat(operands: Operands, block_scaled: bool) -> tuple[Tensor | None, ...] | None:
    """The kernel's arguments: groups one after the other along M, each of max_M rows."""
    x, w, y, sizes, x_scale, w_scale = operands
    a, c = flat_rows(x), flat_rows(y)
    if a is None or c is None:
        return None
    if x_scale is None:
        return a, w.mT, c, sizes, None, None
    rows = flat_rows(x_scale)
    if rows is None:  # a copy: small beside XQ
        rows = flat_rows(x_scale.contiguous())
    if block_scaled:
        return a, w.mT, c, sizes, rows, w_scale.mT
    return a, w.mT, c, sizes, rows[:, 0], w_scale[:, 0, 0] if _has_group_scales(operands) else w_scale[:, :, 0]


def _has_group_scales(operands: Operands) -> bool:
    """Whether one factor serves all lines of a group's weight."""
    return operands.w_scale is not None and operands.w_scale.shape[1] == 1


@functools.cache
def compiled(
    config: CuteConfig, variant: KernelVariant, dtype: torch.dtype, out_dtype: torch.dtype, group_scales: bool,
    multiprocessors: int, whole: bool = False,
):  # fmt: skip
    """The kernel for a configuration and tensors of a kind, compiled at most once in a process."""
    return cute_cache.compiled(
        config,
        dtype_name(dtype),
        dtype_name(out_dtype),
        offsets_along="m",
        b_major=variant.b_major,
        scaled=variant.operand_bytes == 1 and not variant.block_scaled,
        block_scaled=variant.block_scaled,
        masked=True,
        group_scales=group_scales,
        whole_rounds=whole,
        multiprocessors=multiprocessors,
    )
