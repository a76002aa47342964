"""Float8 operands for ``scaled_grouped_mm`` with a factor for each block of 128 along K."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.contexts import is_compiling, is_plain, is_profiling
from course_kernels.dtypes import FP8, FP8_E5M2, OUT_DTYPES
from course_kernels.engine import whole_blocks
from course_kernels.engine.product_checks import BACKENDS, check_offs
from course_kernels.engine.scale_blocks import BLOCK, first_column, padded_columns
from course_kernels.packed import sharding
from course_kernels.packed.checks import ends_of
from course_kernels.type_checks import check_dense, check_extents, check_flags

LARGEST = {FP8: 448.0, FP8_E5M2: 57344.0}  # magnitudes
LEAST = 2.0**-100
_BACKENDS = tuple(name for name in BACKENDS if name != "cute")


def quantize_1x128(
    x: Tensor,
    *,
    dtype: torch.dtype = FP8,
    power_of_two: bool = False,
    offs: Tensor | None = None,
    backend: Literal["auto", "triton", "torch"] = "auto",
    sizes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Round a tensor to float8 with a factor for each block of 128 elements along its last dimension.

    >>> values, factors = quantize_1x128(torch.full((2, 256), 3.0))
    >>> values[0, :2].float().tolist(), factors.shape, values[0, 0].float() * factors[0, 0]
    ([448.0, 448.0], torch.Size([2, 2]), tensor(3.))

    Args:
        x: (..., K) float16, bfloat16 or float32, any strides; any extent may be 0.
        dtype: float8_e4m3fn.
        power_of_two: round factors up to powers of two, which multiply without an error.
        offs: int32 or int64 (G,), the ends of groups along K, as for ``grouped_mm``; x is 2-D then. Blocks restart at
            every group, as mode "k" reads them. Never read on the host.
        backend: "triton" runs the kernel (in Triton's interpreter on a CPU), "torch" does without; "auto" is "torch" on
            CPU tensors, and "triton" elsewhere.
        sizes: int32 or int64 (G,), the extent of each group along K, in place of ``offs``.

    Returns:
        The values, shaped and laid out like x (contiguous where it has more than three dimensions), and the float32
        factors (..., ceil(K / 128)), or (lines, K // 128 + G) with ``offs``: those of group g from column
        ``offs[g - 1] // 128 + g`` on. Memory has the factors of all lines' first blocks, then those of all second
        blocks, and so on: the stride between lines is 1. Past the last group values are 0, and so are factors that no
        block has.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
        RuntimeError: the process cannot run kernels.

    Notes:
        A factor is the block's largest magnitude over 448, and a value x times the factor's reciprocal, rounded to
        nearest, ties to even. Magnitudes below 2**-100 count as that, so a block of zeros has a factor of 2**-100 / 448
        and becomes zeros. NaN and infinities become NaN where they are; factors are those of the finite elements. No
        gradients. One operator, ``torch.ops.course_kernels.quantize_1x128``, under ``torch.compile``; DTensors stay
        sharded in all dimensions but the last.

        A layer of experts ``y = grouped_mm(x, w.mT, offs=offs)``, with w (G, N, K), and both of its gradients::

            LINE, SQUARE = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
            (qx, sx), (qw, sw) = quantize_1x128(x), quantize_128x128(w)
            y = scaled_grouped_mm(qx, qw.mT, sx, LINE, sw.mT, SQUARE, offs=offs)
            qd, sd = quantize_1x128(dy)
            dx = scaled_grouped_mm(qd, qw, sd, LINE, sw, SQUARE, offs=offs)
            (qd, sd), (qx, sx) = (quantize_1x128(t.mT, offs=offs) for t in (dy, x))
            dw = scaled_grouped_mm(qd, qx.mT, sd, LINE, sx, LINE, offs=offs)
    """
    if sizes is not None:
        offs = ends_of(sizes, offs, x=x)
    _check_lines(x, offs, dtype, backend)
    check_flags(power_of_two=power_of_two)
    x = x.detach()
    if is_plain(x, offs) and not is_profiling():
        return _lines(x, offs, power_of_two, backend)
    if not is_compiling():
        sharding.register()
    return torch.ops.course_kernels.quantize_1x128(x, offs, power_of_two, backend)


def quantize_128x128(
    w: Tensor,
    *,
    dtype: torch.dtype = FP8,
    power_of_two: bool = False,
    backend: Literal["auto", "triton", "torch"] = "auto",
) -> tuple[Tensor, Tensor]:
    """Round a tensor to float8 with a factor for each block of 128 x 128 elements of its last two dimensions.

    >>> values, factors = quantize_128x128(torch.full((4, 200, 256), 3.0))
    >>> values.shape, factors.shape
    (torch.Size([4, 200, 256]), torch.Size([4, 2, 2]))

    Args:
        w: (..., R, C) float16, bfloat16 or float32, any strides; any extent may be 0.
        dtype, power_of_two, backend: as for ``quantize_1x128``.

    Returns:
        The values, shaped and laid out like w, and the float32 factors (..., ceil(R / 128), ceil(C / 128)), contiguous.
        Both can be transposed together: one copy of a weight serves a product and its gradient.

    Raises:
        TypeError, ValueError, RuntimeError: as ``quantize_1x128``.

    Notes:
        Factors, rounding, zeros, NaN and infinities are as for ``quantize_1x128``. The operator is
        ``torch.ops.course_kernels.quantize_128x128``; DTensors stay sharded in all dimensions but the last two.
    """
    _check(w, 2, dtype, backend)
    check_flags(power_of_two=power_of_two)
    w = w.detach()
    if is_plain(w) and not is_profiling():
        return _squares(w, power_of_two, backend)
    if not is_compiling():
        sharding.register()
    return torch.ops.course_kernels.quantize_128x128(w, power_of_two, backend)


def quantize_squares(
    w: Tensor, *, power_of_two: bool = False, backend: Literal["auto", "triton", "torch"] = "auto"
) -> tuple[Tensor, Tensor]:
    """``quantize_128x128`` whose values have their last dimension contiguous, as tensor cores read it: a transposed
    weight is transposed on the way, not by a copy."""
    if is_plain(w) and not is_profiling():
        return _squares(w.detach(), power_of_two, backend, deep=True)
    values, factors = quantize_128x128(w, power_of_two=power_of_two, backend=backend)
    return values.contiguous(), factors


def quantize_whole_blocks(
    x: Tensor, offs: Tensor, *, power_of_two: bool = False, backend: Literal["auto", "triton", "torch"] = "auto"
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize x (lines, K) with groups along K as ``quantize_1x128``, into groups of whole blocks: each begins at a
    multiple of 128, and zeros fill its last block. Tensor cores read this form in mode "k" (``whole_blocks``).

    Returns:
        The values (lines, 128 * blocks), contiguous, with ``blocks = K // 128 + G``; the factors (lines, blocks),
        stored block by block; and the ends of the groups, int32 (G,). Past the last group values and factors are 0.
    """
    _check_lines(x, offs, FP8, backend)
    check_flags(power_of_two=power_of_two)
    x = x.detach()
    if is_plain(x, offs) and not is_profiling():
        return _whole(x, offs, power_of_two, backend)
    return torch.ops.course_kernels.quantize_whole_blocks(x, offs, power_of_two, backend)


def _check(x, least_dims: int, dtype, backend) -> None:
    name = "x" if least_dims == 1 else "w"
    check_dense(name, x)
    if x.dtype not in OUT_DTYPES:
        raise TypeError(f"{name} must have a dtype of {OUT_DTYPES}, got {x.dtype}")
    if x.dim() < least_dims:
        raise ValueError(f"{name} must have at least {least_dims} dimension(s), got shape {tuple(x.shape)}")
    if dtype != FP8:
        raise TypeError(f"dtype must be {FP8}, got {dtype!r}")
    if backend not in _BACKENDS:
        raise ValueError(f"backend must be one of {_BACKENDS}, got {backend!r}")
    check_extents(name, x.shape)


def _check_lines(x, offs, dtype, backend) -> None:
    _check(x, 1, dtype, backend)
    if offs is not None:
        if x.dim() != 2:
            raise ValueError(f"x must be 2-D where offs is given, got shape {tuple(x.shape)}")
        check_offs(offs, "x", x.device)


# ---- with kernels


def _lines(
    x: Tensor, offs: Tensor | None, power_of_two: bool, backend: str, fake: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute values and factors; with ``fake``, only allocate them."""
    x = countable(x)
    depth = x.shape[-1]
    columns = -(-depth // BLOCK) if offs is None else padded_columns(depth, offs.shape[0])
    q = torch.empty_like(x, dtype=FP8)
    scale = x.new_empty((columns, *x.shape[:-1]), dtype=torch.float32).movedim(0, -1)
    if fake:
        return q, scale
    if uses_torch(backend, x.device):
        _lines_by_torch(x, offs, power_of_two, q, scale)
    elif q.numel() or (scale.numel() and offs is not None):
        _lines_by_triton(x, offs, power_of_two, q, scale)
    return q, scale


def _whole(
    x: Tensor, offs: Tensor, power_of_two: bool, backend: str, fake: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute values and factors of groups of whole blocks, and their ends; ``fake`` as for ``_lines``."""
    if not fake and uses_torch(backend, x.device):
        values, scale = _lines(x, offs, power_of_two, backend)
        return tuple(whole_blocks.pack_by_torch(values, offs, scale))
    q, scale, ends = whole_blocks.allocate(x, offs.shape[0], FP8, True)
    if fake:
        return q, scale, ends
    if q.numel():
        _lines_by_triton(x, offs, power_of_two, q, scale, ends)
    else:
        ends.copy_(whole_blocks.ends_of(offs, x.shape[1]))
    return q, scale, ends


def _lines_by_triton(
    x: Tensor, offs: Tensor | None, power_of_two: bool, q: Tensor, scale: Tensor, ends: Tensor | None = None
) -> None:
    """Run the kernel; with ``ends``, for groups of whole blocks."""
    from course_kernels.kernels.quantize import quantize_lines_kernel

    tensors = [as_batch(tensor, rank=1) for tensor in (readable(x), q, scale)]
    (batch, lines, depth), columns = tensors[0].shape, scale.shape[-1]
    groups = 0 if offs is None else offs.shape[0]
    # Where lines are side by side in memory, a program reads more of them.
    block = 64 if tensors[0].stride(1) == 1 else 32
    programs = batch * -(-lines // block) * (columns + (offs is not None and ends is None))
    with device_of(x):
        compared = 1 if offs is None else whole_blocks.fill_ends(ends, offs, depth)
        quantize_lines_kernel[(programs,)](
            *tensors, None if offs is None else offs.contiguous(), ends, lines, depth, columns, groups,
            *(stride for tensor in tensors for stride in tensor.stride()), RESTART=offs is not None,
            GROUPS=compared, BLOCK_L=block, POWER_OF_TWO=power_of_two, ROUND=not x.is_cuda,
        )  # fmt: skip


def _squares(w: Tensor, power_of_two: bool, backend: str, fake=False, deep=False) -> tuple[Tensor, Tensor]:
    w = countable(w)
    q = torch.empty_like(w, dtype=FP8, memory_format=torch.contiguous_format if deep else torch.preserve_format)
    scale = w.new_empty((*w.shape[:-2], *(-(-extent // BLOCK) for extent in w.shape[-2:])), dtype=torch.float32)
    if fake:
        return q, scale
    if uses_torch(backend, w.device):
        _squares_by_torch(w, power_of_two, q, scale)
    elif q.numel():
        from course_kernels.kernels.quantize import quantize_squares_kernel

        tensors = [as_batch(tensor, rank=2) for tensor in (readable(w), q, scale)]
        with device_of(w):
            quantize_squares_kernel[(scale.numel(),)](
                *tensors, *w.shape[-2:], *(stride for tensor in tensors for stride in tensor.stride()),
                POWER_OF_TWO=power_of_two, ROUND=not w.is_cuda, num_warps=8,
            )  # fmt: skip
    return q, scale


def uses_torch(backend: str, device: torch.device) -> bool:
    """Whether torch computes a result. Raises if the kernel is needed and cannot run."""
    if backend == "torch" or (backend == "auto" and device.type != "cuda"):
        return True
    if device.type == "cuda":
        runtime.check_dtype("dtype", FP8, device, "Pass backend='torch'.")
    runtime.check_can_launch(device)
    return False


def countable(x: Tensor) -> Tensor:
    """Copy a tensor of more than three dimensions without gaps, so that it can be viewed with three."""
    return x.contiguous() if x.dim() > 3 else x


def readable(x: Tensor) -> Tensor:
    """The tensor as the kernel reads it."""
    x = x.resolve_neg()
    # The interpreter reads bfloat16 as integers.
    return x.float() if x.dtype == torch.bfloat16 and not x.is_cuda else x


def as_batch(tensor: Tensor, rank: int) -> Tensor:
    """View a tensor with three dimensions."""
    if tensor.dim() > 3:
        return tensor.flatten(0, -3)
    return tensor[(None,) * (3 - tensor.dim())]


def device_of(x: Tensor):
    """The context in which a kernel that reads x is launched."""
    return torch.cuda.device(x.device) if x.is_cuda else runtime.interpreting()


# ---- without kernels


def scale_of(largest: Tensor, dtype: torch.dtype, power_of_two: bool) -> Tensor:
    """The factors of blocks or lines from their largest magnitudes."""
    # Divide by a tensor: for a number, CUDA multiplies with its reciprocal.
    scale = largest.clamp(min=LEAST) / torch.full_like(largest, LARGEST[dtype])
    if power_of_two:
        scale = ((scale.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return scale


def rounded(x: Tensor, inverse: Tensor, into: Tensor, inside: Tensor | None = None) -> Tensor:
    """Round x times the reciprocal of its factor to float8; NaN where x is not finite, 0 where not ``inside``. Writes
    to ``into`` and returns it."""
    wide = x.float()
    values = torch.where(wide.isfinite(), wide * inverse, torch.nan)
    if inside is not None:
        values = torch.where(inside, values, 0.0)
    return into.copy_(values)


def magnitudes_of(x: Tensor) -> Tensor:
    """Magnitudes in float32; 0 for NaN and infinities."""
    return torch.where(x.isfinite(), x.float().abs(), 0.0)


def _lines_by_torch(x: Tensor, offs: Tensor | None, power_of_two: bool, q: Tensor, scale: Tensor) -> None:
    at = torch.arange(x.shape[-1], dtype=torch.int64, device=x.device)
    columns, magnitudes, inside, column = scale.shape[-1], magnitudes_of(x), None, at // BLOCK
    if offs is not None:
        # The tail is one more group; its column comes after all others.
        starts = torch.cat([offs.new_zeros(1), offs]).long().clamp(0, x.shape[-1])
        group = torch.searchsorted(starts[1:], at, right=True)
        inside = group < offs.shape[0]
        column = first_column(starts[group], group) + (at - starts[group]) // BLOCK
        column = torch.where(inside, column.clamp(max=columns - 1), columns)
        magnitudes = torch.where(inside, magnitudes, 0.0)
    used = torch.zeros(columns + 1, dtype=torch.bool, device=x.device).index_fill(0, column, True)[:columns]
    largest = magnitudes.new_zeros((*x.shape[:-1], columns + 1))
    largest = largest.scatter_reduce(-1, column.expand(x.shape), magnitudes, "amax")
    factors = scale_of(largest, FP8, power_of_two)
    rounded(x, factors.reciprocal().gather(-1, column.expand(x.shape)), q, inside)
    scale.copy_(torch.where(used, factors[..., :columns], 0.0))


def _squares_by_torch(w: Tensor, power_of_two: bool, q: Tensor, scale: Tensor) -> None:
    rows, cols = w.shape[-2:]
    high, wide = scale.shape[-2:]
    padded = torch.nn.functional.pad(magnitudes_of(w), (0, wide * BLOCK - cols, 0, high * BLOCK - rows))
    blocks = padded.unflatten(-1, (wide, BLOCK)).unflatten(-3, (high, BLOCK))
    scale.copy_(scale_of(blocks.amax((-3, -1)), FP8, power_of_two))
    inverse = scale.reciprocal().repeat_interleave(BLOCK, -2)[..., :rows, :].repeat_interleave(BLOCK, -1)[..., :cols]
    rounded(w, inverse, q)


# ---- operators: torch's compiler gets the formulas above wrong on a CPU, and would not run the kernels on a GPU

_library = torch.library.Library("course_kernels", "FRAGMENT")


def _lines_operator(x, offs, power_of_two, backend, fake=False):
    _check_lines(x, offs, FP8, backend)
    if fake:
        sharding.register()
    return _lines(x, offs, power_of_two, backend, fake)


def _whole_operator(x, offs, power_of_two, backend, fake=False):
    _check_lines(x, offs, FP8, backend)
    return _whole(x, offs, power_of_two, backend, fake)


def _squares_operator(w, power_of_two, backend, fake=False):
    _check(w, 2, FP8, backend)
    if fake:
        sharding.register()
    return _squares(w, power_of_two, backend, fake)


def _batched(operator, info, in_dims, *arguments):
    """vmap: one call for each element of the batch."""

    def element(i):
        return operator(*(a if d is None else a.select(d, i) for a, d in zip(arguments, in_dims)))

    results = tuple(map(torch.stack, zip(*map(element, range(info.batch_size)))))
    return results, (0,) * len(results)


def define(schema: str, function: Callable) -> None:
    """Make an operator of ``function(*arguments, fake=False)``."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, function, "CompositeExplicitAutograd")
    full_name, operator = f"course_kernels::{name}", getattr(torch.ops.course_kernels, name)
    torch.library.register_fake(full_name, functools.partial(function, fake=True), lib=_library)
    torch.library.register_vmap(full_name, functools.partial(_batched, operator), lib=_library)


define("quantize_1x128(Tensor x, Tensor? offs, bool power_of_two, str backend) -> (Tensor, Tensor)", _lines_operator)
define(
    "quantize_whole_blocks(Tensor x, Tensor offs, bool power_of_two, str backend) -> (Tensor, Tensor, Tensor)",
    _whole_operator,
)
define("quantize_128x128(Tensor w, bool power_of_two, str backend) -> (Tensor, Tensor)", _squares_operator)
