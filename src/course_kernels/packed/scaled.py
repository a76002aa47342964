"""Grouped GEMM over packed float8 tensors with a factor for each row of A and each column of B."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.config import GemmConfig
from course_kernels.contexts import refuse_tangents, wants_grad
from course_kernels.packed.api import cut_to_shared_k
from course_kernels.packed.checks import check_options
from course_kernels.packed.problem import Operands, Options
from course_kernels.packed.torch_ops import multiply, multiply_into


def scaled_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | list[Tensor],
    scale_recipe_a,
    scale_b: Tensor | list[Tensor],
    scale_recipe_b,
    swizzle_a=None,
    swizzle_b=None,
    bias: Tensor | None = None,
    offs: Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: list[int] | tuple[int, ...] = (),
    use_fast_accum: bool = False,
    *,
    out: Tensor | None = None,
    tail: str = "zero",
    check: bool = False,
    backend: str = "auto",
    config: GemmConfig | None = None,
) -> Tensor:
    """Multiply the float8 matrices of each group, and scale rows and columns of the product before it is rounded.

    Modes, and everything that is not said here, are those of ``grouped_mm``. Scales by mode, ragged extents as they are
    packed:

    =========  ================================  ================================
    mode       scale_a                           scale_b
    =========  ================================  ================================
    "m"        (total_m,)                        (G, N)
    "n"        (G, M)                            (total_n,)
    "k"        (G * M,) or (G, M)                (G * N,) or (G, N)
    "batch"    (G, M)                            (G, N)
    =========  ================================  ================================

    Args:
        mat_a, mat_b: float8_e4m3fn, shapes as for ``grouped_mm``, any strides.
        scale_a: float32, what to multiply each row of A's product with; or a list of that one tensor.
        scale_recipe_a: ``torch.nn.functional.ScalingType.RowWise``, or a list of that. No other recipe.
        scale_b, scale_recipe_b: likewise for the columns of B.
        swizzle_a, swizzle_b: ``SwizzleType.NO_SWIZZLE``, a list of that, or None: row-wise scales have no other.
        bias: (G, N) of output_dtype or float32, added after scaling; not in mode "n".
        offs: as for ``grouped_mm``.
        output_dtype: bfloat16 (also for None), float16 or float32.
        contraction_dim: () or (-1, -2).
        use_fast_accum: accepted for the sake of callers. Sums are kept as where it is False: the tensor cores add the
            products of a block of K, and float32 the blocks.
        out, tail, check, backend, config: as for ``grouped_mm``; backend "auto" takes "cute" for few rows as well.

    Returns:
        The result, row-major and contiguous; ``out`` itself if it was given.

    Raises:
        TypeError, ValueError, RuntimeError: as ``grouped_mm``; TypeError where a gradient would be needed, too.

    Notes:
        Names and order of the arguments: ``torch.nn.functional.scaled_grouped_mm``, which runs on GPUs alone, wants A
        row-major, B column-major and extents in multiples of 16, and returns bfloat16 alone.
        Float8 operands have no gradient: cast in a ``torch.autograd.Function`` of your own, as training recipes do.
    """
    check_options(tail, config, out is not None)
    scale_a = _row_wise("a", scale_a, scale_recipe_a, swizzle_a)
    scale_b = _row_wise("b", scale_b, scale_recipe_b, swizzle_b)
    if tuple(contraction_dim) not in ((), (-1, -2)):
        raise ValueError(f"contraction_dim must be () or (-1, -2), got {contraction_dim!r}")
    operands = Operands(*cut_to_shared_k(mat_a, mat_b), offs, bias, scale_a, scale_b)
    for name, tensor in operands._asdict().items():
        if wants_grad(tensor):
            raise TypeError(f"{name} requires a gradient, and scaled_grouped_mm has none: detach it")
    refuse_tangents("scaled_grouped_mm", *operands)
    options = Options(output_dtype or torch.bfloat16, tail == "keep", check, backend, config)
    return multiply(operands, options) if out is None else multiply_into(out, operands, options)


def _row_wise(side: str, scale, recipe, swizzle):
    """The one scale tensor of a side, once its recipe and swizzle are known to be row-wise."""
    functional = torch.nn.functional
    # `is`: torch.compile cannot trace how these enumerations, which are not Python's, compare.
    if _only(recipe) is not functional.ScalingType.RowWise:
        raise ValueError(f"scale_recipe_{side} must be ScalingType.RowWise, got {recipe!r}")
    if swizzle is not None and swizzle != [] and _only(swizzle) is not functional.SwizzleType.NO_SWIZZLE:
        raise ValueError(f"swizzle_{side} must be SwizzleType.NO_SWIZZLE or None, got {swizzle!r}")
    if isinstance(scale, (list, tuple)) and len(scale) != 1:
        raise ValueError(f"scale_{side} must be one tensor for the row-wise recipe, got {len(scale)}")
    if not isinstance(_only(scale), Tensor):
        raise TypeError(f"scale_{side} must be a torch.Tensor, got {type(_only(scale)).__name__}")
    return _only(scale)


def _only(value):
    """The single element of a list of one; anything else as it is."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
