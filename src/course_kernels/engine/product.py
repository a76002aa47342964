"""What a grouped product is asked to compute: its operands, its options, its mode and extents.

``Problem.of`` checks form alone (ranks, shapes, dtypes, devices) and reads no values, so fake, meta and symbolic
tensors will do. ``signature`` is the key under which a product's launch is kept.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.config import GemmConfig, LaunchOptions
from course_kernels.dtypes import MAX_EXTENT, MODE_OF_RANKS, default_out_dtype
from course_kernels.engine import checks
from course_kernels.engine.scaling import ROW, block_lines, block_scale_signature, check_block_scales, check_scaling

WINDOW_ROWS = 2**30  # rows that a descriptor with a sliding bound can hold (triton.tools.ragged_tma)


class Operands(NamedTuple):
    """The tensors of one product, as ``grouped_mm`` and ``scaled_grouped_mm`` describe them.

    Attributes:
        mat_a, mat_b: the matrices; their ranks tell the mode.
        offs: exclusive end of each group (G,); None in mode "batch".
        bias: (G, N), or None.
        scale_a, scale_b: float32 factors of A's rows and B's columns, or of their blocks; both or none.
    """

    mat_a: Tensor
    mat_b: Tensor
    offs: Tensor | None = None
    bias: Tensor | None = None
    scale_a: Tensor | None = None
    scale_b: Tensor | None = None


class Options(NamedTuple):
    """How a product is computed; see ``grouped_mm``.

    Attributes:
        out_dtype: of the result; None for the operands' own.
        keep_tail: leave what follows the last group in ``out`` as it is, instead of writing zeros.
        check: validate the values of ``offs``.
        backend: one of ``BACKENDS``.
        config: for the Triton kernels, instead of the chosen one, or how to launch the chosen one.
        accumulate: add the product to what ``out`` holds, in float32, and round once; mode "k".
        scaling: what scales are for, where there are any: "row", or one of ``scaling.BLOCK_SCALINGS``.
    """

    out_dtype: torch.dtype | None = None
    keep_tail: bool = False
    check: bool = False
    backend: str = "auto"
    config: GemmConfig | LaunchOptions | None = None
    accumulate: bool = False
    scaling: str = ROW


class Problem(NamedTuple):
    """One grouped product whose form is right.

    Attributes:
        mode: the ragged extent, "m", "n" or "k", or "batch".
        G: number of groups.
        M, N, K: extents of the operands; the ragged one is the sum over the groups, tail included.
        out_shape: (M, N), or (G, M, N) in modes "k" and "batch".
        out_dtype: of the result.
        precision: "tf32" where float32 operands may be rounded to it, else "ieee".
        options: as given.
        scaling: of the options; None for operands without scales.
    """

    mode: str
    G: int
    M: int
    N: int
    K: int
    out_shape: tuple[int, ...]
    out_dtype: torch.dtype
    precision: str
    options: Options
    scaling: str | None = None

    @property
    def block_lines(self) -> tuple[int, int] | None:
        """Lines of A's and B's blocks that share a factor; None where factors are not those of blocks."""
        return block_lines(self.scaling)

    @property
    def ragged(self) -> int | None:
        """The extent that the groups share out; None in mode "batch"."""
        return {"m": self.M, "n": self.N, "k": self.K, "batch": None}[self.mode]

    @property
    def rows_per_group(self) -> float:
        """What an average group has of the ragged extent, by ``typical_rows``; in mode "batch" its rows."""
        return self.M if self.ragged is None else typical_rows(self.ragged, self.G)

    @classmethod
    def of(cls, operands: Operands, options: Options) -> Problem:
        """The problem that the arguments describe.

        Raises:
            TypeError, ValueError: naming the argument, what it got and what it wants.
        """
        mat_a, mat_b, offs, bias, *_ = operands
        scaled, out_dtype = operands.scale_a is not None, options.out_dtype
        if options.backend not in checks.BACKENDS:
            raise ValueError(f"backend must be one of {checks.BACKENDS}, got {options.backend!r}")
        for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
            checks.check_dense(name, matrix)
            if matrix.dim() not in (2, 3):
                raise ValueError(f"{name} must be 2-D or 3-D, got shape {tuple(matrix.shape)}")
        checks.check_dtypes(mat_a, mat_b, out_dtype, scaled)
        if mat_b.device != mat_a.device:
            raise ValueError(f"mat_b must be on the device of mat_a, {mat_a.device}, got {mat_b.device}")
        mode = MODE_OF_RANKS[mat_a.dim(), mat_b.dim()]
        if scaled:
            check_scaling(options.scaling, mode)
        groups = checks.check_groups(mode, mat_a, mat_b, offs)
        rows, depth, columns = mat_a.shape[-2], mat_a.shape[-1], mat_b.shape[-1]
        if checks.differ(depth, mat_b.shape[-2], "mat_a must have as many columns as mat_b has rows"):
            raise ValueError(
                f"mat_a has K = {depth} columns and mat_b has {mat_b.shape[-2]} rows; they must be equal (shapes "
                f"{tuple(mat_a.shape)} and {tuple(mat_b.shape)})"
            )
        out_shape = (rows, columns) if mode in ("m", "n") else (groups, rows, columns)
        for name, extents in (("mat_a", mat_a.shape), ("mat_b", mat_b.shape), ("the result", out_shape)):
            if any(type(extent) is int and extent > MAX_EXTENT for extent in extents):
                raise ValueError(f"{name} must have extents below 2**31 - 2**16, got shape {tuple(extents)}")
        if out_dtype is None:
            out_dtype = default_out_dtype(mat_a.dtype)
        if bias is not None:
            bias_dtypes = {out_dtype if scaled else mat_a.dtype, torch.float32}
            checks.check_bias(mode, bias, (groups, columns), bias_dtypes, mat_a.device)
        if options.accumulate:
            checks.check_accumulate(mode, bias)
        checks.check_device(mat_a, options.backend)
        precision = "tf32" if mat_a.dtype == torch.float32 and runtime.allows_tf32() else "ieee"
        kind = options.scaling if scaled else None
        return cls(mode, groups, rows, columns, depth, out_shape, out_dtype, precision, options, kind)

    def readable(self, operands: Operands) -> Operands:
        """The operands as kernels read them: no lazily negated views, ends and scales without gaps.

        Raises:
            TypeError, ValueError: a scale is wrong.
        """
        mat_a, mat_b, offs, bias, scale_a, scale_b = operands
        if offs is not None and not offs.is_contiguous():
            offs = offs.contiguous()
        bias = None if bias is None else bias.resolve_neg()
        if self.block_lines is not None:
            extents = self.M, self.N, self.K, self.G
            scales = check_block_scales(self.mode, extents, self.scaling, scale_a, scale_b, mat_a.device)
            scale_a, scale_b = scales
        elif scale_a is not None:
            extents = self.M, self.N, self.G
            scale_a, scale_b = checks.check_scales(self.mode, extents, scale_a, scale_b, mat_a.device)
        return Operands(mat_a.resolve_neg(), mat_b.resolve_neg(), offs, bias, scale_a, scale_b)


def signature(operands: Operands, options: Options, out: Tensor | None = None) -> tuple | None:
    """All that a launch is prepared for: everything but values, addresses, and the ragged extent's total.

    Tensors without memory, whose storage was resized to 0, have a signature of their own.
    Of the total, which changes from batch to batch, only a size class counts, so that the same layer on another batch
    has the same signature. In mode "n" the whole total counts: it is a stride of the result. All that ``Problem.of``
    checks is a function of the signature.

    Returns:
        A key, hashable if the options are; None for operands that no launch is kept for: no tensors, without strides,
        lazily negated views, ends with gaps between them, scales that kernels cannot read as they are.
    """
    mat_a, mat_b, offs, bias, scale_a, scale_b = operands
    try:
        shape_a, shape_b = mat_a.shape, mat_b.shape
        if len(shape_a) == 2:
            if len(shape_b) == 3:
                total, fixed_a, fixed_b = shape_a[0], shape_a[1], shape_b
            else:
                (fixed_a, total), (depth, fixed_b) = shape_a, shape_b
                if depth != total:
                    return None
        elif len(shape_b) == 2:  # the total is the step between rows of a fresh result
            total, fixed_a, fixed_b = shape_b[1], shape_a, shape_b
        else:
            total, fixed_a, fixed_b = None, shape_a, shape_b
        if mat_a.is_neg() or mat_b.is_neg():
            return None
        if offs is None:
            size = groups = ends = None
        elif offs.is_contiguous():  # kernels read it from end to end
            groups, ends = offs.shape, (offs.dtype, offs.device, (at & 15 if (at := offs.data_ptr()) else None))
            size = _size_class(total, groups[0])
        else:
            return None
        key = (
            fixed_a, mat_a.stride(), mat_a.dtype, mat_a.device, (at & 15 if (at := mat_a.data_ptr()) else None),
            fixed_b, mat_b.stride(), mat_b.dtype, mat_b.device, (at & 15 if (at := mat_b.data_ptr()) else None),
            size, groups, ends, options,
        )  # fmt: skip
        if bias is not None:
            if bias.is_neg():
                return None
            at = bias.data_ptr()
            key = (*key, bias.shape, bias.stride(), bias.dtype, bias.device, at & 15 if at else None)
        if scale_a is not None:
            form = len(shape_a), len(shape_b), total
            if options.scaling == ROW:
                scales = _scale_signature(*form, scale_a, scale_b)
            else:
                scales = block_scale_signature(*form, groups[0] if groups else 0, scale_a, scale_b)
            if scales is None:
                return None
            key = (*key, scales)
        if out is not None:
            key = (*key, out.stride(), out.dtype, out.device, (at & 15 if (at := out.data_ptr()) else None), "out")
        if mat_a.dtype == torch.float32:
            key = (*key, runtime.allows_tf32())
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None  # not tensors, or options of other types: Problem.of says so
    return key


def _size_class(total: int, groups: int) -> int:
    """What of a total decides about a launch."""
    if total < 2 or total > WINDOW_ROWS:  # strides without a meaning; extents that no window has
        return total
    return ~_quarter_octave(total, groups)  # a negative number is no total


def _quarter_octave(total: int, groups: int) -> int:
    """Four times the binary logarithm of the average, rounded, in whole numbers; 0 for all averages below 1."""
    average = total / max(1, groups)
    return int(8 * math.log2(average) + 1) >> 1 if average > 1 else 0


def typical_rows(total: int, groups: int) -> float:
    """Rows of an average group, rounded to a quarter of an octave: all that a choice may depend on, so that a product
    is computed in the same way whatever total came first."""
    return 2 ** (_quarter_octave(total, groups) / 4) if total else 0.0


def _scale_signature(rank_a: int, rank_b: int, total: int | None, scale_a, scale_b) -> tuple | None:
    """Of scales in the form that kernels read; None for others."""
    found = []
    for scale, ragged in ((scale_a, (rank_a, rank_b) == (2, 3)), (scale_b, (rank_a, rank_b) == (3, 2))):
        shape = scale.shape
        if not scale.is_contiguous() or (shape != (total,) if ragged else len(shape) != 2):
            return None
        at = scale.data_ptr()
        found += [None if ragged else shape, scale.dtype, scale.device, at & 15 if at else None]
    return tuple(found)
