"""The product of a call of ``deepgemm``, and the checks of its arguments. Errors name the argument, its value and the
valid values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.config import GemmConfig
from course_kernels.dtypes import FP8, FP8_FNUZ, OUT_DTYPES, dtype_name
from course_kernels.engine.descriptors import PACK_BYTES
from course_kernels.engine.product import Counts, Options, Problem, Product
from course_kernels.engine.product_checks import check_backend, check_device, check_num_sms
from course_kernels.engine.scaling import BLOCK, BLOCKS, UNSCALED, Blocks, Lines, Scaling, check_factors
from course_kernels.engine.tuning.fallback_rules import rows_class
from course_kernels.masked.shuffle import ShuffledWeight, check_weight, plain
from course_kernels.memory_overlap import check_detached, check_has_memory, check_written
from course_kernels.type_checks import check_dense, check_extents

FP8_DTYPES = (FP8, FP8_FNUZ)
DTYPES = (torch.float16, torch.bfloat16, *FP8_DTYPES)


class Call(NamedTuple):
    """The arguments of ``deepgemm`` that define the product; the weight without its mark.

    Attributes:
        XQ, WQ, Y, group_layout, x_scale, w_scale: as in ``deepgemm``.
        shuffled: whether WQ is in the order of ``shuffle_weight``.
        rows: expected rows of a group, as ``rows_class`` gives them; 0 if only max_M is known.
    """

    XQ: Tensor
    WQ: Tensor
    Y: Tensor
    group_layout: Tensor
    x_scale: Tensor | None = None
    w_scale: Tensor | None = None
    shuffled: bool = False
    rows: int = 0

    def tensors(self) -> dict[str, Tensor | None]:
        """The tensors by name."""
        return dict(zip(self._fields[:6], self[:6]))

    def product(self) -> Product | None:
        """Make a product of arguments that may be unchecked; None if none can be made of them."""
        try:
            rows = Counts(self.group_layout, self.rows)
            scaling = UNSCALED if self.x_scale is None and self.w_scale is None else _scaling_of(self)
            return Product(self.XQ, self.WQ.mT, rows, scaling, shuffled=self.shuffled)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return None


def problem_of(call: Call, options: Options) -> Problem:
    """Check the form of the arguments and return their problem. Reads no values.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    x, w, y, sizes, *_ = call
    check_backend(options.backend)
    if options.config is not None and not isinstance(options.config, GemmConfig):
        raise TypeError(f"config must be a GemmConfig, got {type(options.config).__name__}")
    check_num_sms(options.num_sms)
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
        check_extents(name, tensor.shape)
    check_dense("group_layout", sizes)
    if sizes.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"group_layout must be torch.int32 or torch.int64, got {sizes.dtype}")
    if tuple(sizes.shape) != (groups,):
        raise ValueError(f"group_layout must be (G,) = ({groups},), got shape {tuple(sizes.shape)}")
    for name, tensor in (("WQ", w), ("Y", y), ("group_layout", sizes)):
        if tensor.device != x.device:
            raise ValueError(f"{name} must be on the device of XQ, {x.device}, got {tensor.device}")
    if call.shuffled:
        check_weight("WQ", w)
        if w.numel() and w.stride()[1:] != (depth, 1):
            raise ValueError(f"WQ must be contiguous within a group where it is shuffled, got strides {w.stride()}")
    scaling = _scaling_of(call)
    _check_device(x, options.backend)
    pack = PACK_BYTES // x.element_size() if call.shuffled else 0
    return Problem(
        "masked", groups, max_m, columns, depth, (groups, max_m, columns), y.dtype, "ieee", options, scaling.name,
        expected=call.rows or rows_class(max_m), pack=pack,
    )  # fmt: skip


def check_call(call: Call, options: Options, out: Tensor) -> tuple[Problem, Product]:
    """Make all checks of a call in memory; nothing is written. ``out`` is Y.

    Returns:
        The problem, and the product as kernels read it: no lazily negated views, counts without gaps.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    problem = problem_of(call, options)
    check_has_memory(call.tensors())
    check_detached("Y", out)
    check_written("Y", out, {name: tensor for name, tensor in call.tensors().items() if name != "Y"})
    if options.check:
        for g, rows in enumerate(call.group_layout.tolist()):
            if not 0 <= rows <= problem.M:
                raise ValueError(f"group_layout[{g}] = {rows} must be from 0 to max_M = {problem.M}")
    factors = (None if scale is None else scale.resolve_neg() for scale in (call.x_scale, call.w_scale))
    readable = Call(
        call.XQ.resolve_neg(), call.WQ.resolve_neg(), out, call.group_layout.contiguous(), *factors, *call[6:]
    )
    product = readable.product()
    assert product is not None  # the arguments were checked
    return problem, product


def resolve_mark(weight, shuffled: bool | None) -> tuple[Tensor, bool]:
    """Remove a weight's mark; return the weight, and whether it is shuffled.

    Raises:
        TypeError: ``shuffled`` is neither a bool nor None.
        ValueError: ``shuffled`` is False and the weight is marked.
    """
    if shuffled is not None and type(shuffled) is not bool:
        raise TypeError(f"shuffled must be True, False or None, got {shuffled!r}")
    marked = getattr(weight, "is_shuffled", False) is True  # AITER marks its plain tensors so, too
    if marked and shuffled is False:
        raise ValueError("shuffled is False, and WQ is marked as shuffled: omit shuffled, or unshuffle_weight first")
    return plain(weight), marked if shuffled is None else shuffled


# ---- parts of the check of form


def _scaling_of(call: Call) -> Scaling:
    """The factors of a product, recognised by their shapes."""
    x, x_scale, w_scale = call.XQ, call.x_scale, call.w_scale
    (groups, max_m, depth), columns = x.shape, call.WQ.shape[1]
    if x.dtype not in FP8_DTYPES:
        for name, scale in (("x_scale", x_scale), ("w_scale", w_scale)):
            if scale is not None:
                raise ValueError(f"{name} must be None for {x.dtype} operands: float8 operands alone have scales")
        return UNSCALED
    for name, scale in (("x_scale", x_scale), ("w_scale", w_scale)):
        if scale is None:
            raise TypeError(f"{name} must be a torch.Tensor for {x.dtype} operands, got NoneType")
        check_dense(name, scale)
        check_factors(name, scale, "XQ", x.device)
    deep, wide = -(-depth // BLOCK), -(-columns // BLOCK)
    of_x, of_w = tuple(x_scale.shape), tuple(w_scale.shape)
    rows = (groups, max_m), (groups, max_m, 1)
    lines = (groups,), (groups, 1, 1), (groups, columns), (groups, columns, 1)
    blocks_x, blocks_w = (groups, max_m, deep), (groups, wide, deep)
    if of_x in rows and of_w in lines:
        of_rows = x_scale if x_scale.dim() == 2 else x_scale[:, :, 0]
        of_lines = w_scale[:, None] if w_scale.dim() == 1 else w_scale if w_scale.dim() == 2 else w_scale[:, :, 0]
        return Lines(of_rows, of_lines.expand(groups, columns))
    if of_w == blocks_w and (of_x == blocks_x or (deep == 1 and of_x == rows[0])):
        return Blocks(x_scale if x_scale.dim() == 3 else x_scale[:, :, None], w_scale.mT, BLOCKS)
    if of_x not in (*rows, blocks_x):
        raise ValueError(
            f"x_scale must be {rows[0]} or {rows[1]}, a factor for each row, or {blocks_x}, one for each 1 x {BLOCK} "
            f"of XQ, got shape {of_x}"
        )
    if of_w not in (*lines, blocks_w):
        raise ValueError(
            f"w_scale must be {lines[0]} or {lines[1]}, a factor for each group, {lines[2]} or {lines[3]}, one for "
            f"each line, or {blocks_w}, one for each {BLOCK} x {BLOCK} of WQ, got shape {of_w}"
        )
    raise ValueError(f"x_scale and w_scale must both be of blocks of {BLOCK} or both not, got shapes {of_x} and {of_w}")


def _check_device(x: Tensor, backend: str) -> None:
    """Raise if no kernel runs on a device, or if it does not multiply the dtype."""
    on_gpu = backend != "torch" and x.device.type == "cuda"
    if on_gpu and x.dtype in FP8_DTYPES and torch.version.hip is not None:
        gpu = torch.cuda.get_device_properties(x.device).gcnArchName.partition(":")[0]
        if x.dtype != (FP8_FNUZ if gpu.startswith("gfx94") else FP8):
            other = FP8 if x.dtype == FP8_FNUZ else FP8_FNUZ
            raise TypeError(f"XQ has dtype {x.dtype}, and {gpu} multiplies {other}")
    elif on_gpu and x.dtype == FP8_FNUZ:
        raise TypeError(f"XQ has dtype {x.dtype}, which AMD's gfx942 multiplies; NVIDIA's GPUs multiply {FP8}")
    else:
        check_device("XQ", x, backend)
