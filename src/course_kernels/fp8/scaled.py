"""Grouped GEMM over packed float8 tensors with factors: of rows and columns, or of blocks of 128 along K."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType
from torch.overrides import handle_torch_function

from course_kernels.config import GemmConfig
from course_kernels.contexts import has_overrides, is_compiling, refuse_tangents, wants_grad
from course_kernels.dtypes import MODE_OF_RANKS
from course_kernels.engine.options import Options
from course_kernels.engine.product import Product
from course_kernels.engine.product_checks import Backend
from course_kernels.engine.scaling import LINE, ROW, SQUARE
from course_kernels.packed.api import cut_to_shared_k
from course_kernels.packed.checks import Tail, check_options, ends_of
from course_kernels.packed.torch_ops import multiply, multiply_into
from course_kernels.type_checks import check_dense


def scaled_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | list[Tensor],
    scale_recipe_a: ScalingType | list[ScalingType],
    scale_b: Tensor | list[Tensor],
    scale_recipe_b: ScalingType | list[ScalingType],
    swizzle_a: SwizzleType | list[SwizzleType] | None = None,
    swizzle_b: SwizzleType | list[SwizzleType] | None = None,
    bias: Tensor | None = None,
    offs: Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: list[int] | tuple[int, ...] = (),
    use_fast_accum: bool = False,
    *,
    out: Tensor | None = None,
    tail: Tail = "zero",
    check: bool = False,
    backend: Backend = "auto",
    config: GemmConfig | None = None,
    num_sms: int | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    """Multiply the float8 matrices of each group, scaled by factors of rows and columns or of blocks of 128 along K.

    >>> rows, weights = torch.ones(3, 16).to(torch.float8_e4m3fn), torch.ones(2, 16, 1).to(torch.float8_e4m3fn)
    >>> of_rows, of_columns, kind = torch.tensor([1.0, 2.0, 3.0]), torch.ones(2, 1), ScalingType.RowWise
    >>> scaled_grouped_mm(rows, weights, of_rows, kind, of_columns, kind, offs=torch.tensor([1, 3])).flatten()
    tensor([16., 32., 48.], dtype=torch.bfloat16)

    Modes, and everything that is not said here, are those of ``grouped_mm``. Scales by mode, ragged extents as they are
    packed; first those of rows and columns (``RowWise``). In its place either operand may have one factor for all of
    its elements (``TensorWise``), a scale of one element and any shape:

    =========  ================================  ================================
    mode       scale_a                           scale_b
    =========  ================================  ================================
    "m"        (total_m,)                        (G, N)
    "n"        (G, M)                            (total_n,)
    "k"        (G * M,) or (G, M)                (G * N,) or (G, N)
    "batch"    (G, M)                            (G, N)
    =========  ================================  ================================

    Then those of blocks, with K' = ceil(K / 128), M' and N' likewise. A block of ``BlockWise1x128`` is 128 elements
    along K of one row of A, or of one column of B; one of ``BlockWise128x128`` is of 128 such rows or columns.

    =========  ==================  =======================  ==================  =======================
    mode       recipe of A         scale_a                  recipe of B         scale_b
    =========  ==================  =======================  ==================  =======================
    "m"        BlockWise1x128      (total_m, K')            BlockWise128x128    (G, K', N')
    "m"        BlockWise1x128      (total_m, K')            BlockWise1x128      (G, N, K')
    "n"        BlockWise128x128    (G, M', K')              BlockWise1x128      (total_n, K')
    "n"        BlockWise1x128      (G, M, K')               BlockWise1x128      (total_n, K')
    "k"        BlockWise1x128      (M, C)                   BlockWise1x128      (N, C)
    "batch"    BlockWise1x128      (G, M, K')               BlockWise128x128    (G, K', N')
    "batch"    BlockWise128x128    (G, M', K')              BlockWise1x128      (G, N, K')
    "batch"    BlockWise1x128      (G, M, K')               BlockWise1x128      (G, N, K')
    =========  ==================  =======================  ==================  =======================

    In mode "k" the number of columns C says where blocks begin. With C = total_k // 128 + G they restart at every
    group: those of group g are the columns from ``offs[g - 1] // 128 + g`` on (0 for the first group), and a group's
    last block may be short. Columns that no block has are not read. With C = ceil(total_k / 128) the block of an
    element is its index along K divided by 128, and every group must end at a multiple of 128.

    Args:
        mat_a, mat_b: float8_e4m3fn or float8_e5m2, which may differ (gradients are often of the second), shapes as for
            ``grouped_mm``, any strides.
        scale_a: float32, what to multiply the products of a row, or of a block, with; any strides; or a list of that
            one tensor.
        scale_recipe_a: of ``torch.nn.functional.ScalingType``, as above, or a list of that.
        scale_b, scale_recipe_b: likewise for B.
        swizzle_a, swizzle_b: ``SwizzleType.NO_SWIZZLE``, a list of that, or None: these scales have no other.
        bias: (G, N) of output_dtype or float32, added after scaling; not in mode "n".
        offs, sizes: as for ``grouped_mm``: the end or the extent of each group; one of them.
        output_dtype: bfloat16 (also for None), float16 or float32.
        contraction_dim: () or (-1, -2).
        use_fast_accum: accepted for the sake of callers. Sums are kept as where it is False: the tensor cores add the
            products of a block of K, and float32 the blocks, each multiplied with its factors where blocks have some.
        out, tail, check, backend, config, num_sms: as for ``grouped_mm``; backend "auto" takes "cute" for few rows as
            well. A config for scales of blocks has a block_k that divides 128.

    Returns:
        The result, row-major and contiguous; ``out`` itself if it was given.

    Raises:
        TypeError, ValueError, RuntimeError: as ``grouped_mm``; TypeError where a gradient would be needed, too.

    Notes:
        Names and order of the arguments: ``torch.nn.functional.scaled_grouped_mm``, which runs on GPUs alone, wants
        float8_e4m3fn, A row-major, B column-major and extents in multiples of 16, takes neither ``TensorWise`` nor
        blocks of 128, and returns bfloat16 alone. Its recipes for MX and NV formats are refused here.
        float8_e5m2 goes to the Triton kernels, as backend "cute" is for two operands of float8_e4m3fn.
        In mode "k" backend "cute" reads operands as they are where groups end at multiples of 128, K is contiguous and
        lines are multiples of 16 bytes apart. It copies others into that form first, on the device.
        Scales of blocks are DeepSeek-V3's (its technical report, section 3.3.2). ``quantize_1x128`` and
        ``quantize_128x128`` make them; for a layer's three products see there.
        The operator is ``torch.ops.course_kernels.scaled_grouped_mm``. With factors of rows and columns DTensors have
        the shardings of ``grouped_mm``; with factors of blocks all are gathered. gloo gathers no float8: torch raises
        "Invalid scalar type".
        ``torch.func.vmap`` makes a call for each element of the batch.
        Float8 operands have no gradient: ``to_fp8_then_scaled_grouped_mm`` is for training.
    """
    tensors = (mat_a, mat_b, _only(scale_a), _only(scale_b), bias, offs, out, sizes)
    if has_overrides(*tensors) and not is_compiling():
        return handle_torch_function(
            scaled_grouped_mm, tensors, mat_a, mat_b, scale_a, scale_recipe_a, scale_b, scale_recipe_b, swizzle_a,
            swizzle_b, bias, offs, output_dtype, contraction_dim, use_fast_accum, out=out, tail=tail, check=check,
            backend=backend, config=config, num_sms=num_sms, sizes=sizes,
        )  # fmt: skip
    if sizes is not None:
        offs = ends_of(sizes, offs, mat_a=mat_a, mat_b=mat_b)
    check_options(tail, config, out is not None, num_sms, check=check, use_fast_accum=use_fast_accum)
    scaling, of_tensors = _scaling(scale_recipe_a, scale_recipe_b)
    scale_a, scale_b = _scale("a", scale_a, swizzle_a), _scale("b", scale_b, swizzle_b)
    if not isinstance(contraction_dim, (list, tuple)) or tuple(contraction_dim) not in ((), (-1, -2)):
        raise ValueError(f"contraction_dim must be () or (-1, -2), got {contraction_dim!r}")
    if any(of_tensors):
        scale_a, scale_b = _of_rows(of_tensors, mat_a, mat_b, offs, scale_a, scale_b)
    matrices = cut_to_shared_k(mat_a, mat_b)
    named = dict(mat_a=matrices[0], mat_b=matrices[1], offs=offs, bias=bias, scale_a=scale_a, scale_b=scale_b)
    for name, tensor in named.items():
        if wants_grad(tensor):
            raise TypeError(f"{name} requires a gradient, and scaled_grouped_mm has none: detach it")
    refuse_tangents("scaled_grouped_mm", *named.values(), instead=None)
    product = Product.packed(**named, scaling=scaling, keep_tail=tail == "keep")
    options = Options(output_dtype or torch.bfloat16, check, backend, config, num_sms)
    return multiply(product, options) if out is None else multiply_into(out, product, options)


def _scaling(recipe_a, recipe_b) -> tuple[str, tuple[bool, bool]]:
    """The name of a pair of recipes, and for each side whether one factor serves the whole tensor."""
    # `is`: torch.compile cannot trace a comparison of these enumerations, which are not Python's.
    kinds, found, of_tensors = torch.nn.functional.ScalingType, [], []
    for side, recipe in (("a", _only(recipe_a)), ("b", _only(recipe_b))):
        of_tensors.append(recipe is kinds.TensorWise)
        if recipe is kinds.RowWise or recipe is kinds.TensorWise:
            found.append(ROW)
        elif recipe is kinds.BlockWise1x128:
            found.append(LINE)
        elif recipe is kinds.BlockWise128x128:
            found.append(SQUARE)
        else:
            raise ValueError(
                f"scale_recipe_{side} must be ScalingType.TensorWise, RowWise, BlockWise1x128 or BlockWise128x128, "
                f"got {recipe!r}"
            )
    if ROW in found and found[0] != found[1]:
        raise ValueError(
            "scale_recipe_a and scale_recipe_b must both be ScalingType.RowWise or TensorWise, or both of blocks "
            f"(BlockWise1x128 or BlockWise128x128), got {_only(recipe_a)!r} and {_only(recipe_b)!r}"
        )
    return ROW if ROW in found else " ".join(found), tuple(of_tensors)


def _of_rows(of_tensors, mat_a, mat_b, offs, scale_a, scale_b) -> list[Tensor]:
    """Expand scales with one factor for a whole tensor to a factor for each row and column."""
    scales = [scale_a, scale_b]
    ranks = [tensor.dim() if isinstance(tensor, Tensor) else None for tensor in (mat_a, mat_b, offs)]
    mode = MODE_OF_RANKS.get(tuple(ranks[:2]))
    for i, (side, of_tensor) in enumerate(zip("ab", of_tensors)):
        if not of_tensor:
            continue
        if scales[i].numel() != 1:
            raise ValueError(
                f"scale_{side} must have one element with ScalingType.TensorWise, got shape {tuple(scales[i].shape)}"
            )
        if mode is None or (mode == "k" and ranks[2] != 1):
            continue  # later checks raise
        extent = (mat_a.shape[-2], mat_b.shape[-1])[i]
        groups = offs.shape[0] if mode == "k" else (mat_a if ranks[0] == 3 else mat_b).shape[0]
        shape = (extent,) if mode == ("m", "n")[i] else (groups, extent)
        scales[i] = scales[i].reshape(()).expand(shape).contiguous()
    return scales


def _scale(side: str, scale, swizzle) -> Tensor:
    """Check that a side has no swizzle, and return its one scale tensor."""
    if swizzle is not None and swizzle != [] and _only(swizzle) is not torch.nn.functional.SwizzleType.NO_SWIZZLE:
        raise ValueError(f"swizzle_{side} must be SwizzleType.NO_SWIZZLE or None, got {swizzle!r}")
    if isinstance(scale, (list, tuple)) and len(scale) != 1:
        raise ValueError(f"scale_{side} must be one tensor for each of these recipes, got {len(scale)}")
    check_dense(f"scale_{side}", _only(scale))
    return _only(scale)


def _only(value):
    """The single element of a list of one; anything else as it is."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
