"""What a grouped product is asked to compute: its operands, its options, its mode and extents.

``Problem.of`` checks form alone (ranks, shapes, dtypes, devices) and reads no values, so fake, meta and symbolic
tensors will do. ``signature`` is the key under which a product's launch is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.dtypes import FP8, MAX_EXTENT, MODE_OF_RANKS, OUT_DTYPES, default_out_dtype

BACKENDS = ("auto", "triton", "cute", "torch")
TAILS = ("zero", "keep")
# Which dimension of which operand the groups share out, and what its extent is called.
_RAGGED = {"m": ("mat_a", 0, "rows"), "n": ("mat_b", 1, "columns"), "k": ("mat_a", 1, "columns")}
# Rows of an average group at which a backend starts to choose otherwise, beyond powers of two.
_EDGES = (16, 32, 64, 512, 1024, 4096)
WINDOW_ROWS = 2**30  # rows that a descriptor with a sliding bound can hold (triton.tools.ragged_tma)


class Operands(NamedTuple):
    """The tensors of one product, as ``grouped_mm`` and ``scaled_grouped_mm`` describe them.

    Attributes:
        mat_a, mat_b: the matrices; their ranks tell the mode.
        offs: exclusive end of each group (G,); None in mode "batch".
        bias: (G, N), or None.
        scale_a, scale_b: float32 factors of A's rows and B's columns; both or none.
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
        config: for the Triton kernels, instead of the chosen one.
    """

    out_dtype: torch.dtype | None = None
    keep_tail: bool = False
    check: bool = False
    backend: str = "auto"
    config: GemmConfig | None = None


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

    @property
    def ragged(self) -> int | None:
        """The extent that the groups share out; None in mode "batch"."""
        return {"m": self.M, "n": self.N, "k": self.K, "batch": None}[self.mode]

    @property
    def rows_per_group(self) -> float:
        """What an average group has of the ragged extent; in mode "batch" its rows."""
        return self.M if self.ragged is None else self.ragged / max(1, self.G)

    @classmethod
    def of(cls, operands: Operands, options: Options) -> Problem:
        """The problem that the arguments describe.

        Raises:
            TypeError, ValueError: naming the argument, what it got and what it wants.
        """
        mat_a, mat_b, offs, bias, *_ = operands
        scaled, out_dtype = operands.scale_a is not None, options.out_dtype
        if options.backend not in BACKENDS:
            raise ValueError(f"backend must be one of {BACKENDS}, got {options.backend!r}")
        for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
            check_dense(name, matrix)
            if matrix.dim() not in (2, 3):
                raise ValueError(f"{name} must be 2-D or 3-D, got shape {_shape(matrix)}")
        _check_dtypes(mat_a, mat_b, out_dtype, scaled)
        if mat_b.device != mat_a.device:
            raise ValueError(f"mat_b must be on the device of mat_a, {mat_a.device}, got {mat_b.device}")
        mode = MODE_OF_RANKS[mat_a.dim(), mat_b.dim()]
        groups = _check_groups(mode, mat_a, mat_b, offs)
        rows, depth, columns = mat_a.shape[-2], mat_a.shape[-1], mat_b.shape[-1]
        if depth != mat_b.shape[-2]:
            raise ValueError(
                f"mat_a has K = {depth} columns and mat_b has {mat_b.shape[-2]} rows; they must be equal (shapes "
                f"{_shape(mat_a)} and {_shape(mat_b)})"
            )
        out_shape = (rows, columns) if mode in ("m", "n") else (groups, rows, columns)
        for name, extents in (("mat_a", mat_a.shape), ("mat_b", mat_b.shape), ("the result", out_shape)):
            if any(type(extent) is int and extent > MAX_EXTENT for extent in extents):
                raise ValueError(f"{name} must have extents below 2**31 - 2**16, got shape {tuple(extents)}")
        if out_dtype is None:
            out_dtype = default_out_dtype(mat_a.dtype)
        if bias is not None:
            bias_dtypes = {out_dtype if scaled else mat_a.dtype, torch.float32}
            _check_bias(mode, bias, (groups, columns), bias_dtypes, mat_a.device)
        _check_device(mat_a, options.backend)
        precision = "tf32" if mat_a.dtype == torch.float32 and runtime.allows_tf32() else "ieee"
        return cls(mode, groups, rows, columns, depth, out_shape, out_dtype, precision, options)


def signature(operands: Operands, options: Options, out: Tensor | None = None) -> tuple | None:
    """All that a launch is prepared for: everything but values, addresses, and the ragged extent's total.

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
            groups, ends = offs.shape, (offs.dtype, offs.device, offs.data_ptr() & 15)
            size = _size_class(total, groups[0])
        else:
            return None
        key = (
            fixed_a, mat_a.stride(), mat_a.dtype, mat_a.device, mat_a.data_ptr() & 15,
            fixed_b, mat_b.stride(), mat_b.dtype, mat_b.device, mat_b.data_ptr() & 15,
            size, groups, ends, options,
        )  # fmt: skip
        if bias is not None:
            if bias.is_neg():
                return None
            key = (*key, bias.shape, bias.stride(), bias.dtype, bias.device, bias.data_ptr() & 15)
        if scale_a is not None:
            scales = _scale_signature(len(shape_a), len(shape_b), total, scale_a, scale_b)
            if scales is None:
                return None
            key = (*key, scales)
        if out is not None:
            key = (*key, out.stride(), out.dtype, out.device, out.data_ptr() & 15, "out")
        if mat_a.dtype == torch.float32:
            key = (*key, runtime.allows_tf32())
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None  # not tensors, or options of other types: Problem.of says so
    return key


def _size_class(total: int, groups: int) -> int:
    """What of a total decides about a launch."""
    if total < 2 or total > WINDOW_ROWS:  # strides without a meaning; extents that no window has
        return total
    groups = groups or 1
    # Powers of two of the average by ratio, as in a tuning bucket, and the edges passed. A negative number is no total.
    octave = (total * total // (groups * groups)).bit_length() >> 1
    return ~(8 * octave + bisect_left(_EDGES, total / groups))


def _scale_signature(rank_a: int, rank_b: int, total: int | None, scale_a, scale_b) -> tuple | None:
    """Of scales in the form that kernels read; None for others."""
    found = []
    for scale, ragged in ((scale_a, (rank_a, rank_b) == (2, 3)), (scale_b, (rank_a, rank_b) == (3, 2))):
        shape = scale.shape
        if not scale.is_contiguous() or (shape != (total,) if ragged else len(shape) != 2):
            return None
        found += [None if ragged else shape, scale.dtype, scale.device, scale.data_ptr() & 15]
    return tuple(found)


# ---- checks


def check_dense(name: str, value) -> None:
    """Raise unless a value is a tensor with strides."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(f"{name} must be a dense (strided) tensor, got layout {layout}")


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _check_dtypes(mat_a: Tensor, mat_b: Tensor, out_dtype, scaled: bool) -> None:
    allowed = (FP8,) if scaled else OUT_DTYPES
    if mat_a.dtype not in allowed:
        hint = "; scaled_grouped_mm multiplies float8_e4m3fn" if not scaled and mat_a.dtype == FP8 else ""
        raise TypeError(f"mat_a must have a dtype of {allowed}, got {mat_a.dtype}{hint}")
    if mat_b.dtype != mat_a.dtype:
        raise TypeError(f"mat_b must have the dtype of mat_a, {mat_a.dtype}, got {mat_b.dtype}")
    if out_dtype is not None and out_dtype not in OUT_DTYPES:
        raise TypeError(f"{'output_dtype' if scaled else 'out_dtype'} must be one of {OUT_DTYPES}, got {out_dtype!r}")


def _check_groups(mode: str, mat_a: Tensor, mat_b: Tensor, offs) -> int:
    """The number of groups, on which ``offs`` and the 3-D operands must agree."""
    shapes = f"(shapes {_shape(mat_a)} and {_shape(mat_b)})"
    if mode == "batch":
        if offs is not None:
            got = f"shape {_shape(offs)}" if isinstance(offs, Tensor) else type(offs).__name__
            raise ValueError(f"offs must be None where mat_a and mat_b are both 3-D, got {got} {shapes}")
        if mat_a.shape[0] != mat_b.shape[0]:
            raise ValueError(
                f"mat_a holds {mat_a.shape[0]} matrices and mat_b holds {mat_b.shape[0]}; they must be equal {shapes}"
            )
        return mat_a.shape[0]
    name, _, what = _RAGGED[mode]
    if offs is None:
        raise ValueError(f"offs must give the ends of the groups in the {what} of {name}, got None {shapes}")
    check_dense("offs", offs)
    if offs.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"offs must be torch.int32 or torch.int64, got {offs.dtype}")
    if offs.dim() != 1:
        raise ValueError(f"offs must be 1-D, one end for each group, got shape {_shape(offs)}")
    if offs.device != mat_a.device:
        raise ValueError(f"offs must be on the device of mat_a, {mat_a.device}, got {offs.device}")
    if mode == "k":
        return offs.shape[0]
    holder, groups = ("mat_b", mat_b.shape[0]) if mode == "m" else ("mat_a", mat_a.shape[0])
    if offs.shape[0] != groups:
        hint = ": it wants the exclusive ends alone, without a leading 0" if offs.shape[0] == groups + 1 else ""
        raise ValueError(
            f"offs must have one end for each of the {groups} groups of {holder}, got {offs.shape[0]}{hint}"
        )
    return groups


def _check_bias(mode: str, bias, shape: tuple[int, int], dtypes: set[torch.dtype], device: torch.device) -> None:
    check_dense("bias", bias)
    if mode == "n":
        raise ValueError(
            f"bias must be None where mat_b is 2-D and mat_a 3-D, got shape {_shape(bias)}: each group has columns of "
            "its own there, and no bias (G, N) describes them"
        )
    if tuple(bias.shape) != shape:
        raise ValueError(f"bias must have shape (G, N) = {shape}, got {_shape(bias)}")
    if bias.dtype not in dtypes:
        wanted = " or ".join(sorted(map(str, dtypes)))
        raise TypeError(f"bias must have dtype {wanted}, got {bias.dtype}")
    if bias.device != device:
        raise ValueError(f"bias must be on the device of mat_a, {device}, got {bias.device}")


def _check_device(mat_a: Tensor, backend: str) -> None:
    """Raise where no kernel runs on the operands' kind of device, or the GPU does not multiply their dtype."""
    device = mat_a.device
    if backend == "torch" or device.type in ("cpu", "meta"):
        return
    if device.type != "cuda":
        raise ValueError(
            f"mat_a must be on a CPU or a GPU of type cuda, got {device}; backend='torch' takes tensors of any device"
        )
    if torch.cuda.is_available() or not isinstance(mat_a, FakeTensor):  # fake tensors of a GPU that is not here
        runtime.check_dtype("mat_a", mat_a.dtype, device, "Convert the operands to float16, or pass backend='torch'.")
