"""What a masked grouped product is asked to compute, the checks of its arguments, and the key of its launch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.dtypes import FP8, FP8_FNUZ, MAX_EXTENT, OUT_DTYPES, dtype_name
from course_kernels.engine.checks import BACKENDS, check_dense
from course_kernels.engine.tuning.defaults import rows_class
from course_kernels.kernels.codes import Scales
from course_kernels.masked.shuffle import ShuffledWeight, check_weight, plain
from course_kernels.memory import check_has_memory, check_writable, overlaps_itself, share_memory

FP8_DTYPES = (FP8, FP8_FNUZ)
DTYPES = (torch.float16, torch.bfloat16, *FP8_DTYPES)
SCALED = 128  # elements along K, and along N, that share a block scale


class Operands(NamedTuple):
    """The tensors of one product, as ``deepgemm`` describes them; the weight without its mark."""

    XQ: Tensor
    WQ: Tensor
    Y: Tensor
    group_layout: Tensor
    x_scale: Tensor | None = None
    w_scale: Tensor | None = None


class Options(NamedTuple):
    """How a product is computed; see ``deepgemm``.

    Attributes:
        shuffled: whether WQ is in the order of ``shuffle_weight``.
        rows: expected in a group, 0 where max_M is all that is known; as ``rows_class`` gives it.
        check: validate the values of ``group_layout``.
        backend: one of ``BACKENDS``.
        config: for the Triton kernel, instead of the chosen one.
    """

    shuffled: bool = False
    rows: int = 0
    check: bool = False
    backend: str = "auto"
    config: GemmConfig | None = None


class Problem(NamedTuple):
    """One product whose form is right.

    Attributes:
        G, max_M, N, K: extents.
        dtype: of XQ and WQ.
        scales: what factors there are.
        rows: expected in a group.
        options: as given.
    """

    G: int
    max_M: int
    N: int
    K: int
    dtype: torch.dtype
    scales: Scales
    rows: int
    options: Options

    @classmethod
    def of(cls, operands: Operands, options: Options) -> Problem:
        """The problem that the arguments describe. Reads no values.

        Raises:
            TypeError, ValueError: naming the argument, what it got and what it wants.
        """
        x, w, y, sizes, *_ = operands
        if options.backend not in BACKENDS:
            raise ValueError(f"backend must be one of {BACKENDS}, got {options.backend!r}")
        if options.config is not None and not isinstance(options.config, GemmConfig):
            raise TypeError(f"config must be a GemmConfig, got {type(options.config).__name__}")
        for name, tensor in (("XQ", x), ("WQ", w), ("Y", y)):
            check_dense(name, tensor)
            if isinstance(tensor, ShuffledWeight):
                raise TypeError(f"{name} must be a plain tensor, got a shuffled weight")
            if tensor.dim() != 3:
                shape = {"XQ": "(G, max_M, K)", "WQ": "(G, N, K)", "Y": "(G, max_M, N)"}[name]
                raise ValueError(f"{name} must be {shape}, got shape {tuple(tensor.shape)}")
        if x.dtype not in DTYPES:
            raise TypeError(f"XQ must be one of {', '.join(map(dtype_name, DTYPES))}, got {x.dtype}")
        if w.dtype != x.dtype:
            raise TypeError(f"WQ must have the dtype of XQ, {x.dtype}, got {w.dtype}")
        if y.dtype not in OUT_DTYPES:
            raise TypeError(f"Y must be one of {', '.join(map(dtype_name, OUT_DTYPES))}, got {y.dtype}")
        (groups, max_m, depth), columns = x.shape, w.shape[1]
        if tuple(w.shape) != (groups, columns, depth):
            raise ValueError(f"WQ must be (G, N, K) = ({groups}, N, {depth}) as XQ has it, got {tuple(w.shape)}")
        if tuple(y.shape) != (groups, max_m, columns):
            raise ValueError(f"Y must be (G, max_M, N) = {(groups, max_m, columns)}, got {tuple(y.shape)}")
        for name, tensor in (("XQ", x), ("WQ", w)):
            if any(type(extent) is int and extent > MAX_EXTENT for extent in tensor.shape):
                raise ValueError(f"{name} must have extents below 2**31 - 2**16, got shape {tuple(tensor.shape)}")
        _check_sizes(sizes, groups)
        for name, tensor in (("WQ", w), ("Y", y), ("group_layout", sizes)):
            if tensor.device != x.device:
                raise ValueError(f"{name} must be on the device of XQ, {x.device}, got {tensor.device}")
        if options.shuffled:
            check_weight("WQ", w)
            if w.numel() and w.stride()[1:] != (depth, 1):
                raise ValueError(f"WQ must be contiguous within a group where it is shuffled, got strides {w.stride()}")
        scales = _scales_of(operands, (groups, max_m, columns, depth))
        _check_device(x, options.backend)
        return cls(groups, max_m, columns, depth, x.dtype, scales, options.rows or rows_class(max_m), options)


def check_memory(operands: Operands) -> None:
    """Check that Y can be written. Nothing is written.

    Raises:
        ValueError: a tensor has no memory; or Y is a lazily negated view, or an inference tensor outside of that mode,
            shares memory with itself or an operand, or would lose a gradient.
    """
    y = operands.Y
    check_has_memory(operands._asdict())
    if y.requires_grad and torch.is_grad_enabled():
        raise ValueError("Y requires a gradient, which a write into it would lose: pass Y.detach()")
    check_writable("Y", y)
    if y.is_neg():  # its memory would hold the result with the other sign
        raise ValueError("Y is a lazily negated view, which kernels cannot write: pass another tensor")
    if not y.is_contiguous() and overlaps_itself(y):
        raise ValueError(f"Y has elements that share memory (strides {y.stride()}); pass a clone of it")
    for name, operand in operands._asdict().items():
        if name != "Y" and operand is not None and share_memory(y, operand):
            raise ValueError(f"Y shares memory with {name}; they must not overlap")


def check_values(sizes: Tensor, max_m: int) -> None:
    """Check the values of ``group_layout``; waits for the device.

    Raises:
        ValueError: with the index and the value.
    """
    for g, rows in enumerate(sizes.tolist()):
        if not 0 <= rows <= max_m:
            raise ValueError(f"group_layout[{g}] = {rows} must be from 0 to max_M = {max_m}")


def readable(operands: Operands) -> Operands:
    """The operands as kernels read them: no lazily negated views, sizes without gaps, scales (G, lines, blocks)."""
    x, w, y, sizes, x_scale, w_scale = operands
    if x_scale is not None:
        x_scale, w_scale = (
            scale[(..., *(None,) * (3 - scale.dim()))].resolve_neg() if scale.dim() < 3 else scale.resolve_neg()
            for scale in (x_scale, w_scale)
        )
    return Operands(x.resolve_neg(), w.resolve_neg(), y, sizes.contiguous(), x_scale, w_scale)


def signature(operands: Operands, options: Options) -> tuple | None:
    """All that a launch is prepared for: everything but values and addresses.

    Returns:
        A key, hashable if the options are; None for operands that no launch is kept for.
    """
    try:
        key = [options]
        for tensor in operands:
            if tensor is None:
                key.append(None)
                continue
            if tensor.is_neg():
                return None
            at = tensor.data_ptr()
            key += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, at & 15 if at else None)
        if not operands.group_layout.is_contiguous():  # kernels read it from end to end
            return None
    except (AttributeError, RuntimeError, TypeError):  # not tensors: Problem.of says so
        return None
    return tuple(key)


def resolve_mark(weight, shuffled: bool | None) -> tuple[Tensor, bool]:
    """The weight without its mark, and whether it is shuffled.

    Raises:
        TypeError: ``shuffled`` is neither a bool nor None.
        ValueError: a marked weight is said to be plain.
    """
    if shuffled is not None and type(shuffled) is not bool:
        raise TypeError(f"shuffled must be True, False or None, got {shuffled!r}")
    marked = getattr(weight, "is_shuffled", False) is True  # AITER marks its plain tensors so, too
    if marked and shuffled is False:
        raise ValueError("shuffled is False, and WQ is marked as shuffled: omit shuffled, or unshuffle_weight first")
    return plain(weight), marked if shuffled is None else shuffled


def flat_rows(tensor: Tensor) -> Tensor | None:
    """(G, max_M, columns) as (G * max_M, columns), the same memory; None where its strides do not allow it."""
    groups, rows, columns = tensor.shape
    of_group, of_row, of_column = tensor.stride()
    if groups > 1 and rows > 1 and of_group != rows * of_row:
        return None
    return tensor.as_strided((groups * rows, columns), (of_row if rows > 1 else of_group, of_column))


# ---- parts of the check of form


def _check_sizes(sizes, groups: int) -> None:
    check_dense("group_layout", sizes)
    if sizes.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"group_layout must be torch.int32 or torch.int64, got {sizes.dtype}")
    if tuple(sizes.shape) != (groups,):
        raise ValueError(f"group_layout must be (G,) = ({groups},), got shape {tuple(sizes.shape)}")


def _scales_of(operands: Operands, extents: tuple[int, int, int, int]) -> Scales:
    """What factors a product has, by their shapes."""
    groups, max_m, columns, depth = extents
    x, x_scale, w_scale = operands.XQ, operands.x_scale, operands.w_scale
    if x.dtype not in FP8_DTYPES:
        for name, scale in (("x_scale", x_scale), ("w_scale", w_scale)):
            if scale is not None:
                raise ValueError(f"{name} must be None for {x.dtype} operands: float8 operands alone have scales")
        return Scales.NONE
    for name, scale in (("x_scale", x_scale), ("w_scale", w_scale)):
        if not isinstance(scale, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor for {x.dtype} operands, got {type(scale).__name__}")
        check_dense(name, scale)
        if scale.dtype != torch.float32:
            raise TypeError(f"{name} must be torch.float32, got {scale.dtype}")
        if scale.device != x.device:
            raise ValueError(f"{name} must be on the device of XQ, {x.device}, got {scale.device}")
    deep, wide = -(-depth // SCALED), -(-columns // SCALED)
    of_x, of_w = tuple(x_scale.shape), tuple(w_scale.shape)
    rows = (groups, max_m), (groups, max_m, 1)
    lines = (groups,), (groups, 1, 1), (groups, columns), (groups, columns, 1)
    blocks_x, blocks_w = (groups, max_m, deep), (groups, wide, deep)
    if deep == 1 and of_x == rows[0]:
        of_x = blocks_x
    if of_x in rows and of_w in lines:
        return Scales.LINES
    if of_x == blocks_x and of_w == blocks_w:
        return Scales.BLOCKS
    if of_x not in (*rows, blocks_x):
        raise ValueError(
            f"x_scale must be {rows[0]} or {rows[1]}, a factor for each row, or {blocks_x}, one for each 1 x {SCALED} "
            f"of XQ, got shape {of_x}"
        )
    if of_w not in (*lines, blocks_w):
        raise ValueError(
            f"w_scale must be {lines[0]} or {lines[1]}, a factor for each group, {lines[2]} or {lines[3]}, one for "
            f"each line, or {blocks_w}, one for each {SCALED} x {SCALED} of WQ, got shape {of_w}"
        )
    raise ValueError(
        f"x_scale and w_scale must both be of blocks of {SCALED} or both not, got shapes {of_x} and {of_w}"
    )


def _check_device(x: Tensor, backend: str) -> None:
    """Raise where no kernel runs on a device, or it does not multiply the dtype."""
    device = x.device
    if backend == "torch" or device.type in ("cpu", "meta"):
        return
    if device.type != "cuda":
        raise ValueError(
            f"XQ must be on a CPU or a GPU of type cuda, got {device}; backend='torch' takes tensors of any device"
        )
    if x.dtype in FP8_DTYPES and torch.version.hip is not None:
        gpu = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        if x.dtype != (FP8_FNUZ if gpu.startswith("gfx94") else FP8):
            other = FP8 if x.dtype == FP8_FNUZ else FP8_FNUZ
            raise TypeError(f"XQ has dtype {x.dtype}, and {gpu} multiplies {other}")
    elif x.dtype == FP8_FNUZ:
        raise TypeError(f"XQ has dtype {x.dtype}, which AMD's gfx942 multiplies; NVIDIA's GPUs multiply {FP8}")
    else:
        remedy = "Convert the operands to float16, or pass backend='torch'."
        runtime.check_dtype("XQ", x.dtype, device, remedy)
