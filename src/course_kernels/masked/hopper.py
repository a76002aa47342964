"""The kernel in CuTe DSL behind ``deepgemm``: which products it takes on Hopper, and in which configuration.

It is the kernel of ``grouped_mm`` with groups at equal distances. It takes plain weights, of 16 bits, or of 8 bits with
factors for rows and lines, or for blocks. Shuffled weights are the Triton kernel's.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import Tensor

from course_kernels.engine import product as packed
from course_kernels.engine.hopper import counters as cute_counters
from course_kernels.engine.hopper import cute
from course_kernels.engine.scaling import ROW
from course_kernels.kernels.codes import Scales
from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.kernels.cute_sm90.form import Form
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


def match_form(problem: Problem, operands: Operands) -> Form | None:
    """The form that computes a product, or None: as for ``grouped_mm``, and rows of all groups are equally far apart
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
    form = cute.match_form(packed.Operands(a, b, sizes, None, scale_a, scale_b), c, scaling=scaling)
    if form is None:
        return None
    of_groups = not blocks and _has_group_scales(operands)
    return form._replace(rows="counts", scaling="groups" if of_groups else form.scaling)


def offer(problem: Problem, operands: Operands, num_sms: int | None = None) -> cute.Offer | None:
    """The offer for a product, in the configuration for the rows that are expected; as ``engine.hopper.cute.offer``. A
    configuration for the Triton kernel is never for this one. The time model's constants are those of ``grouped_mm``.
    """
    form = match_form(problem, operands)
    if form is None:
        return None
    gpu, extents = cute.gpu_with(operands.XQ.device, num_sms), _extents(problem)
    config = cute.choose(form, *extents, gpu)
    return cute.expect(form, extents, gpu, functools.partial(_plan, form, config, num_sms))


def _plan(form: Form, config: CuteConfig, num_sms: int | None, problem: Problem, operands: Operands) -> Plan:
    """The launch for products like this one. Where the expected rows fit into one tile, the weights are read once, and
    L2 does not keep them. The time model does not know of that: it was fitted to kernels that let L2 keep what they
    read."""
    device = operands.XQ.device
    config = replace(config, stream_b=problem.rows <= config.tile_m)
    form = form._replace(whole_rounds=config.whole_rounds(problem.K, form))
    function = cute.compiled(config, form, problem.dtype, operands.Y.dtype, device)
    return Plan(function, cute.clusters_of(config, device, num_sms), form.scaling == "blocks", config.dynamic)


def _extents(problem: Problem) -> tuple[int, tuple[int, int], int, int]:
    """A product as ``cute.choose`` takes it: rows of an average group, size of the result, depth, groups."""
    return problem.rows, (problem.G * problem.max_M, problem.N), problem.K, problem.G


class Plan:
    """A compiled kernel, to be run on tensors of one form, in so many clusters; ``dynamic`` as in its configuration."""

    def __init__(self, function, clusters: int, block_scaled: bool = False, dynamic: bool = False):
        self._function, self._clusters, self._block_scaled, self._dynamic = function, clusters, block_scaled, dynamic

    def run(self, operands: Operands) -> None:
        """Launch on the current stream."""
        a, b, c, sizes, scale_a, scale_b = _flat(operands, self._block_scaled)
        counter = cute_counters.take(c.device) if self._dynamic else None
        self._function(a, b, c, sizes, self._clusters, scale_a, scale_b, counter)


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
