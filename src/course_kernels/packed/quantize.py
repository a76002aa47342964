"""Float8 operands for ``scaled_grouped_mm`` with a factor for each block of 128 along K."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import FP8, FP8_E5M2, MAX_EXTENT, OUT_DTYPES
from course_kernels.packed.checks import BACKENDS, check_dense, check_offs
from course_kernels.packed.scaling import BLOCK, padded_columns
from course_kernels.packed.torch_ops import is_plain

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
) -> tuple[Tensor, Tensor]:
    """Round a tensor to float8 with a factor for each block of 128 elements along its last dimension.

    Args:
        x: (..., K) float16, bfloat16 or float32, any strides; any extent may be 0.
        dtype: float8_e4m3fn.
        power_of_two: round factors up to powers of two, which multiply without an error.
        offs: int32 or int64 (G,), the ends of groups along K, as for ``grouped_mm``; x is 2-D then. Blocks restart at
            every group, as mode "k" reads them. Never read on the host.
        backend: "triton" runs the kernel (in Triton's interpreter on a CPU), "torch" does without; "auto" is "torch" on
            CPU tensors, and where torch traces or fakes tensors.

    Returns:
        The values, shaped and laid out like x (contiguous where it has more than three dimensions), and the float32
        factors (..., ceil(K / 128)), or (lines, K // 128 + G) with ``offs``: those of group g from column
        ``offs[g - 1] // 128 + g`` on. Factors are stored block by block: the stride between lines is 1. Past the last
        group values are 0, and so are factors that no block has.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
        RuntimeError: the process cannot run kernels.

    Notes:
        A factor is the block's largest magnitude over 448, and a value x times the factor's reciprocal, rounded to
        nearest, ties to even. Magnitudes below 2**-100 count as that, so a block of zeros has a factor of 2**-100 / 448
        and becomes zeros. NaN and infinities become NaN where they are; factors are those of the finite elements. No
        gradients.

        A layer of experts ``y = grouped_mm(x, w.mT, offs=offs)``, with w (G, N, K), and both of its gradients::

            LINE, SQUARE = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
            (qx, sx), (qw, sw) = quantize_1x128(x), quantize_128x128(w)
            y = scaled_grouped_mm(qx, qw.mT, sx, LINE, sw.mT, SQUARE, offs=offs)
            qd, sd = quantize_1x128(dy)
            dx = scaled_grouped_mm(qd, qw, sd, LINE, sw, SQUARE, offs=offs)
            (qd, sd), (qx, sx) = (quantize_1x128(t.mT, offs=offs) for t in (dy, x))
            dw = scaled_grouped_mm(qd, qx.mT, sd, LINE, sx, LINE, offs=offs)
    """
    _check(x, 1, dtype, backend)
    x = _detached(x)
    if offs is None:
        columns = -(-x.shape[-1] // BLOCK)
    else:
        if x.dim() != 2:
            raise ValueError(f"x must be 2-D where offs is given, got shape {tuple(x.shape)}")
        check_offs(offs, "x", x.device)
        columns = padded_columns(x.shape[1], offs.shape[0])
    if _uses_torch(backend, x, offs):
        return _lines_by_torch(x, dtype, power_of_two, offs, columns)
    x, q = _prepared(x, dtype)
    scale = x.new_empty((*x.shape[:-2], columns, *x.shape[-2:-1]), dtype=torch.float32)
    scale = scale.mT if x.dim() > 1 else scale
    if q.numel() or (scale.numel() and offs is not None):
        from course_kernels.kernels.quantize import quantize_lines_kernel

        tensors = [_as_batch(tensor, rank=1) for tensor in (x, q, scale)]
        batch, lines, depth = tensors[0].shape
        groups = 0 if offs is None else offs.shape[0]
        # Lines side by side in memory are read together.
        block = 64 if tensors[0].stride(1) == 1 else 32
        programs = batch * -(-lines // block) * (columns + (offs is not None))
        with _device_of(x):
            quantize_lines_kernel[(programs,)](
                *tensors, None if offs is None else offs.contiguous(), lines, depth, columns, groups,
                *(stride for tensor in tensors for stride in tensor.stride()), RESTART=offs is not None,
                GROUPS=1 << groups.bit_length(), BLOCK_L=block, POWER_OF_TWO=bool(power_of_two), ROUND=not x.is_cuda,
            )  # fmt: skip
    return q, scale


def quantize_128x128(
    w: Tensor,
    *,
    dtype: torch.dtype = FP8,
    power_of_two: bool = False,
    backend: Literal["auto", "triton", "torch"] = "auto",
) -> tuple[Tensor, Tensor]:
    """Round a tensor to float8 with a factor for each block of 128 x 128 elements of its last two dimensions.

    Args:
        w: (..., R, C) float16, bfloat16 or float32, any strides; any extent may be 0.
        dtype, power_of_two, backend: as for ``quantize_1x128``.

    Returns:
        The values, shaped and laid out like w, and the float32 factors (..., ceil(R / 128), ceil(C / 128)), contiguous.
        Both can be transposed together: one copy of a weight serves a product and its gradient.

    Raises:
        TypeError, ValueError, RuntimeError: as ``quantize_1x128``.

    Notes:
        Factors, rounding, zeros, NaN and infinities are as for ``quantize_1x128``.
    """
    _check(w, 2, dtype, backend)
    w = _detached(w)
    if _uses_torch(backend, w):
        return _squares_by_torch(w, dtype, power_of_two)
    w, q = _prepared(w, dtype)
    scale = w.new_empty((*w.shape[:-2], *(-(-extent // BLOCK) for extent in w.shape[-2:])), dtype=torch.float32)
    if q.numel():
        from course_kernels.kernels.quantize import quantize_squares_kernel

        tensors = [_as_batch(tensor, rank=2) for tensor in (w, q, scale)]
        with _device_of(w):
            quantize_squares_kernel[(scale.numel(),)](
                *tensors, *w.shape[-2:], *(stride for tensor in tensors for stride in tensor.stride()),
                POWER_OF_TWO=bool(power_of_two), ROUND=not w.is_cuda, num_warps=8,
            )  # fmt: skip
    return q, scale


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
    if any(type(extent) is int and extent > MAX_EXTENT for extent in x.shape):
        raise ValueError(f"{name} must have extents below 2**31 - 2**16, got shape {tuple(x.shape)}")


def _detached(x: Tensor) -> Tensor:
    """Without a gradient; more than three dimensions without gaps, so that they can be counted as three."""
    x = x.detach()
    return x.contiguous() if x.dim() > 3 else x


def _uses_torch(backend: str, *tensors: Tensor | None) -> bool:
    """Whether torch computes a result. Raises where the kernel is asked for and cannot run."""
    device = tensors[0].device
    if backend == "torch" or not is_plain(*tensors) or (backend == "auto" and device.type != "cuda"):
        return True
    if device.type == "cuda":
        runtime.check_dtype("dtype", FP8, device, "Pass backend='torch'.")
    runtime.check_can_launch(device)
    return False


def _prepared(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tensor as the kernel reads it, and memory for its values."""
    x = x.resolve_neg()
    q = torch.empty_like(x, dtype=dtype)
    # The interpreter reads bfloat16 as integers.
    return x.float() if x.dtype == torch.bfloat16 and not x.is_cuda else x, q


def _as_batch(tensor: Tensor, rank: int) -> Tensor:
    """A tensor as one of three dimensions."""
    if tensor.dim() > 3:
        return tensor.flatten(0, -3)
    return tensor[(None,) * (3 - tensor.dim())]


def _device_of(x: Tensor):
    return torch.cuda.device(x.device) if x.is_cuda else runtime.interpreting()


# ---- without kernels


def scale_of(largest: Tensor, dtype: torch.dtype, power_of_two: bool) -> Tensor:
    """The factors for values whose largest magnitudes are given."""
    # A tensor to divide by: CUDA multiplies with a number's reciprocal.
    scale = largest.clamp(min=LEAST) / torch.full_like(largest, LARGEST[dtype])
    if power_of_two:
        scale = ((scale.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return scale


def rounded(
    x: Tensor, inverse: Tensor, dtype: torch.dtype, inside: Tensor | None = None, memory=torch.preserve_format
) -> Tensor:
    """Values in float8: x times the reciprocal of its factor; NaN where x is not finite, 0 where not ``inside``.
    ``memory`` is the memory format of the result."""
    wide = x.float()
    values = torch.where(wide.isfinite(), wide * inverse, torch.nan)
    if inside is not None:
        values = torch.where(inside, values, 0.0)
    return torch.empty_like(x, dtype=dtype, memory_format=memory).copy_(values)


def magnitudes_of(x: Tensor) -> Tensor:
    """Magnitudes in float32; 0 for NaN and infinities."""
    return torch.where(x.isfinite(), x.float().abs(), 0.0)


def _lines_by_torch(x: Tensor, dtype, power_of_two: bool, offs: Tensor | None, columns: int):
    at = torch.arange(x.shape[-1], device=x.device)
    magnitudes, inside, column = magnitudes_of(x), None, at // BLOCK
    if offs is not None:
        # The tail is a group of its own, whose columns come after all others.
        starts = torch.cat([offs.new_zeros(1), offs]).long().clamp(0, x.shape[-1])
        group = torch.searchsorted(starts[1:], at, right=True)
        inside = group < offs.shape[0]
        column = starts[group] // BLOCK + group + (at - starts[group]) // BLOCK
        column = torch.where(inside, column.clamp(max=columns - 1), columns)
        magnitudes = torch.where(inside, magnitudes, 0.0)
    used = torch.zeros(columns + 1, dtype=torch.bool, device=x.device).index_fill(0, column, True)[:columns]
    largest = magnitudes.new_zeros((*x.shape[:-1], columns + 1))
    largest = largest.scatter_reduce(-1, column.expand(x.shape), magnitudes, "amax")
    scale = scale_of(largest, dtype, power_of_two)
    q = rounded(x, scale.reciprocal().gather(-1, column.expand(x.shape)), dtype, inside)
    scale = torch.where(used, scale[..., :columns], 0.0)
    return q, scale.mT.contiguous().mT if x.dim() > 1 else scale


def _squares_by_torch(w: Tensor, dtype, power_of_two: bool):
    rows, cols = w.shape[-2:]
    high, wide = -(-rows // BLOCK), -(-cols // BLOCK)
    padded = torch.nn.functional.pad(magnitudes_of(w), (0, wide * BLOCK - cols, 0, high * BLOCK - rows))
    blocks = padded.unflatten(-1, (wide, BLOCK)).unflatten(-3, (high, BLOCK))
    scale = scale_of(blocks.amax((-3, -1)), dtype, power_of_two)
    inverse = scale.reciprocal().repeat_interleave(BLOCK, -2)[..., :rows, :].repeat_interleave(BLOCK, -1)[..., :cols]
    return rounded(w, inverse, dtype), scale
