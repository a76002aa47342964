"""The kernel in CuTe DSL behind ``deepgemm``: which products it takes on Hopper, and in which configuration.

It is the kernel of ``grouped_mm`` with groups at equal distances. It takes plain weights, of 16 bits, or of 8 bits with
factors for rows and lines. Shuffled weights and block scales are the Triton kernel's.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import dtype_name
from course_kernels.kernels.codes import Scales
from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.masked.problem import Operands, Problem, flat_rows
from course_kernels.packed import problem as packed
from course_kernels.packed.backends import cute, cute_cache
from course_kernels.packed.backends.cute import KernelVariant


def check_available(device: torch.device) -> None:
    """Raise unless the kernel can run on a device; as ``packed.backends.cute``, in the words of ``deepgemm``.

    Raises:
        ValueError: the device is no Hopper GPU.
        ImportError: a package is missing.
    """
    try:
        cute.check_available(device)
    except ValueError as error:
        raise ValueError(str(error).replace("mat_a", "XQ")) from None


def preferred(problem: Problem, operands: Operands) -> bool:
    """Whether ``backend="auto"`` asks this kernel first: where it runs, for 8-bit operands and for groups of more than
    a few rows."""
    asks = problem.dtype.itemsize == 1 or problem.rows > cute.FEW_ROWS
    return asks and cute.runs_on(operands.XQ.device) and cute.installed()


def match_variant(problem: Problem, operands: Operands) -> KernelVariant | None:
    """The variant that computes a product, or None: as for ``grouped_mm``, and rows of all groups are equally far apart
    in XQ and Y."""
    options = problem.options
    if options.shuffled or options.config is not None or problem.scales == Scales.BLOCKS:
        return None
    arguments = _flat(operands)
    if arguments is None:
        return None
    a, b, c, sizes, scale_a, scale_b = arguments
    if not all(scale is None or scale.is_contiguous() for scale in (scale_a, scale_b)):
        return None
    return cute.match_variant(packed.Operands(a, b, sizes, None, scale_a, scale_b), c)


def supports(problem: Problem, operands: Operands) -> bool:
    """Whether the kernel computes a product; a configuration for the Triton kernel is never for this one."""
    return match_variant(problem, operands) is not None


def plan(problem: Problem, operands: Operands) -> Plan:
    """The launch for products like this one, in the configuration for the rows that are expected."""
    variant, processors = match_variant(problem, operands), runtime.num_sms(operands.XQ.device)
    size = problem.G * problem.max_M, problem.N
    config = cute.choose(variant, problem.rows, size, problem.K, processors)
    return Plan(compiled(config, variant, problem.dtype, operands.Y.dtype, _has_group_scales(operands), processors))


class Plan:
    """A compiled kernel, to be run on tensors of one variant."""

    def __init__(self, function):
        self._function = function

    def run(self, operands: Operands) -> None:
        """Launch on the current stream. int64 sizes are clamped and converted there first."""
        a, b, c, sizes, scale_a, scale_b = _flat(operands)
        if sizes.dtype != torch.int32:
            sizes = sizes.clamp(0, operands.XQ.shape[1]).to(torch.int32)
        self._function(a, b, c, sizes, scale_a, scale_b)


def _flat(operands: Operands) -> tuple[Tensor | None, ...] | None:
    """The kernel's arguments: groups one after the other along M, each of max_M rows."""
    x, w, y, sizes, x_scale, w_scale = operands
    a, c = flat_rows(x), flat_rows(y)
    if a is None or c is None:
        return None
    if x_scale is None:
        return a, w.mT, c, sizes, None, None
    rows = flat_rows(x_scale)
    if rows is None:
        return None
    return a, w.mT, c, sizes, rows[:, 0], w_scale[:, 0, 0] if _has_group_scales(operands) else w_scale[:, :, 0]


def _has_group_scales(operands: Operands) -> bool:
    """Whether one factor serves all lines of a group's weight."""
    return operands.w_scale is not None and operands.w_scale.shape[1] == 1


@functools.cache
def compiled(
    config: CuteConfig, variant: KernelVariant, dtype: torch.dtype, out_dtype: torch.dtype, group_scales: bool,
    multiprocessors: int,
):  # fmt: skip
    """The kernel for a configuration and tensors of a kind, compiled at most once in a process."""
    return cute_cache.compiled(
        config,
        dtype_name(dtype),
        dtype_name(out_dtype),
        offsets_along="m",
        b_major=variant.b_major,
        scaled=variant.operand_bytes == 1,
        masked=True,
        group_scales=group_scales,
        multiprocessors=multiprocessors,
    )
