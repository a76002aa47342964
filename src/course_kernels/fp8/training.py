"""A layer of experts in float8: operands of 16 or 32 bits are rounded on the way, forward and backward."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from course_kernels.contexts import (
    REVERSE,
    autocast_dtype,
    cast,
    is_batched_by_autograd,
    is_batched_or_functional,
    is_compiling,
    refuse_dtensors,
    refuse_tangents,
    unwrapped,
)
from course_kernels.dtypes import FP8, OUT_DTYPES, SCALED_DTYPES
from course_kernels.engine.gradient_layout import is_column_major
from course_kernels.engine.product_checks import Backend, check_offs
from course_kernels.fp8.lines import quantize_group_lines, quantize_lines
from course_kernels.fp8.quantize import quantize_1x128, quantize_squares, quantize_whole_blocks
from course_kernels.fp8.scaled import scaled_grouped_mm
from course_kernels.packed.checks import ends_of
from course_kernels.type_checks import check_dense, check_flags

Recipe: TypeAlias = Literal["rowwise", "blockwise"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)


def scales_whole_lines(recipe: str) -> bool:
    """Whether a recipe has a factor for each whole line, and not for each block of it. All code of float8 asks here.

    Raises:
        ValueError: neither is known of this recipe.
    """
    known = {"rowwise": True, "blockwise": False}
    if recipe not in known:
        raise ValueError(f"recipe must be one of {tuple(known)}, got {recipe!r}")
    return known[recipe]


def to_fp8_then_scaled_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    recipe: Recipe = "rowwise",
    out_dtype: torch.dtype | None = None,
    grad_dtype: torch.dtype = FP8,
    power_of_two: bool = False,
    backend: Backend = "auto",
    sizes: Tensor | None = None,
) -> Tensor:
    """Round both operands to float8 with factors and multiply the groups' rows, forward and backward.

    >>> rows, weights = torch.ones(3, 16), torch.ones(2, 16, 1, requires_grad=True)
    >>> out = to_fp8_then_scaled_grouped_mm(rows, weights, offs=torch.tensor([1, 3]), power_of_two=True)
    >>> out.sum().backward()
    >>> out.flatten(), weights.grad[:, 0, 0]
    (tensor([16., 16., 16.], grad_fn=<ViewBackward0>), tensor([1., 2.]))

    Args:
        mat_a: (total_m, K), the activations; float16, bfloat16 or float32, any strides.
        mat_b: (G, K, N), the weights; likewise, of the same or another of these dtypes.
        offs, sizes: int32 or int64 (G,), as for ``grouped_mm``: the end or the rows of each group; one of them.
        recipe: "rowwise" has a factor for each line of an operand along what is summed over: of a group's lines in the
            weights' gradient, where groups divide that. "blockwise" has a factor for each 128 elements along it, and
            for each 128 × 128 of the weights.
        out_dtype: of the result: float16, bfloat16 or float32. Default: that of mat_a. Gradients have their operand's.
        grad_dtype: what the result's gradient is rounded to: float8_e4m3fn, or for "rowwise" float8_e5m2.
        power_of_two: round factors up to powers of two, which multiply without an error.
        backend: of the products, as for ``scaled_grouped_mm``. Kernels round operands where kernels multiply.

    Returns:
        (total_m, N), row-major and contiguous. Rows after the last group are zeros.

    Raises:
        TypeError, ValueError, RuntimeError: as ``scaled_grouped_mm``, naming the argument, what it got and what it
            wants. RuntimeError also for gradients of gradients, under ``torch.func``'s ``vmap`` and ``functionalize``,
            and where ``torch.compile`` compiles a transform of it. TypeError for DTensors: pass ``to_local()``.

    Notes:
        What torchao calls ``_to_fp8_rowwise_then_scaled_grouped_mm``, and with blocks the recipe of DeepSeek-V3. A
        layer does three products in float8: ``mat_a @ mat_b``, and with the rounded gradient the gradients of both.
        Each rounds its operands anew along what it sums over, so master weights stay as they are, and no float8 copy
        is kept between forward and backward. Sums are float32.
        A factor is the largest magnitude over that of the float8 type (448, or 57344 for float8_e5m2), as in
        ``quantize_1x128``; NaN and infinities become NaN.
        Gradients of the tail and of empty groups are zero; that of a mat_b whose columns are contiguous, such as
        ``weight.mT``, is stored like it. Under ``torch.autocast`` operands are cast first, as those of ``grouped_mm``.
    """
    if sizes is not None:
        offs = ends_of(sizes, offs, mat_a=mat_a, mat_b=mat_b)
    _check(mat_a, mat_b, offs, recipe, out_dtype, grad_dtype)
    check_flags(power_of_two=power_of_two)
    if not is_compiling():
        refuse_dtensors("to_fp8_then_scaled_grouped_mm", mat_a=mat_a, mat_b=mat_b, offs=offs)
        _refuse_transforms()
    elif torch._C._are_functorch_transforms_active():
        raise RuntimeError("to_fp8_then_scaled_grouped_mm under torch.func is not compiled: a graph loses its gradient")
    if dtype := autocast_dtype(mat_a.device.type):
        mat_a, mat_b = cast(mat_a, dtype), cast(mat_b, dtype)
    refuse_tangents("to_fp8_then_scaled_grouped_mm", mat_a, mat_b, instead=REVERSE)
    out_dtype = out_dtype or mat_a.dtype
    return _Layer.apply(mat_a, mat_b, offs, recipe, out_dtype, grad_dtype, power_of_two, backend)


def _check(mat_a, mat_b, offs, recipe, out_dtype, grad_dtype) -> None:
    for name, matrix, rank, shape in (("mat_a", mat_a, 2, "(total_m, K)"), ("mat_b", mat_b, 3, "(G, K, N)")):
        check_dense(name, matrix)
        if matrix.dtype not in OUT_DTYPES:
            raise TypeError(f"{name} must have a dtype of {OUT_DTYPES}, got {matrix.dtype}")
        if matrix.dim() != rank:
            raise ValueError(f"{name} must be {shape}, got shape {tuple(matrix.shape)}")
    if offs is None:
        raise ValueError("offs must give the ends of the groups in the rows of mat_a, got None")
    check_offs(offs, "mat_a", mat_a.device)
    if mat_b.device != mat_a.device:
        raise ValueError(f"mat_b must be on the device of mat_a, {mat_a.device}, got {mat_b.device}")
    if recipe not in RECIPES:
        raise ValueError(f"recipe must be one of {RECIPES}, got {recipe!r}")
    if out_dtype is not None and out_dtype not in OUT_DTYPES:
        raise TypeError(f"out_dtype must be one of {OUT_DTYPES}, got {out_dtype!r}")
    allowed = SCALED_DTYPES if scales_whole_lines(recipe) else (FP8,)
    if grad_dtype not in allowed:
        raise TypeError(f"grad_dtype must be one of {allowed} with recipe {recipe!r}, got {grad_dtype!r}")


def _refuse_transforms() -> None:
    if is_batched_or_functional():
        raise RuntimeError("to_fp8_then_scaled_grouped_mm has no rule for torch.func.vmap, nor for functionalize")


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(mat_a, mat_b, offs, recipe, out_dtype, grad_dtype, power_of_two, backend):
        rounding = _Rounding(recipe, power_of_two, backend)
        return rounding.rows_by_weights(mat_a, mat_b.mT, offs, FP8, out_dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        mat_a, mat_b, offs, recipe, _, ctx.grad_dtype, power_of_two, backend = inputs
        needs_a, needs_b, *_ = ctx.needs_input_grad
        ctx.rounding = _Rounding(recipe, power_of_two, backend)
        ctx.dtypes, ctx.across = (mat_a.dtype, mat_b.dtype), is_column_major(mat_b)
        ctx.save_for_backward(mat_a if needs_b else None, mat_b if needs_a else None, offs)

    @staticmethod
    def backward(ctx, grad):
        # Unwrapped, because the function that vjp returns runs after its transform has ended.
        if not is_compiling() and is_batched_by_autograd(grad):
            raise RuntimeError("to_fp8_then_scaled_grouped_mm has no rule for is_grads_batched: ask for one at a time")
        mat_a, mat_b, offs = map(unwrapped, ctx.saved_tensors)
        rounding, grads = ctx.rounding, [None, None]
        again = torch.is_grad_enabled()  # create_graph=True, or torch.func
        if again:
            _refuse_transforms()
        with torch.no_grad():
            if ctx.needs_input_grad[0]:
                grads[0] = rounding.rows_by_weights(grad, mat_b, offs, ctx.grad_dtype, ctx.dtypes[0])
            if ctx.needs_input_grad[1]:
                grads[1] = rounding.columns_by_columns(mat_a, grad, offs, ctx.grad_dtype, ctx.dtypes[1], ctx.across)
        if again:
            grads = [each if each is None else _WithoutGradient.apply(each, grad, mat_a, mat_b) for each in grads]
        return *grads, None, None, None, None, None, None


class _WithoutGradient(torch.autograd.Function):
    """Return a gradient unchanged, but raise an error if its own gradient is needed. Without this, torch would take it
    for a constant (``once_differentiable`` looks only at the incoming gradient)."""

    @staticmethod
    def forward(found, *_):
        return found.view_as(found)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep nothing."""

    @staticmethod
    def backward(ctx, _):
        raise RuntimeError("to_fp8_then_scaled_grouped_mm has no gradients of gradients: it rounds, in steps")


class _Rounding:
    """A recipe and its three products."""

    def __init__(self, recipe: str, power_of_two: bool, backend: str):
        self._rowwise, self._backend = scales_whole_lines(recipe), backend
        # There is no rounding kernel in CuTe DSL.
        self._rounds = dict(power_of_two=power_of_two, backend="auto" if backend == "cute" else backend)

    def rows_by_weights(self, rows: Tensor, weights: Tensor, offs: Tensor, dtype, out_dtype) -> Tensor:
        """``rows[start:end] @ weights[g].T`` of rows (total_m, D), rounded to ``dtype``, and weights (G, lines, D)."""
        kinds = torch.nn.functional.ScalingType
        if self._rowwise:
            left, of_left = quantize_lines(rows, dtype, **self._rounds)
            right, of_right = quantize_lines(weights, FP8, **self._rounds)
            recipes = kinds.RowWise, kinds.RowWise
        else:
            left, of_left = quantize_1x128(rows, **self._rounds)
            right, of_right = quantize_squares(weights, **self._rounds)
            recipes, of_right = (kinds.BlockWise1x128, kinds.BlockWise128x128), of_right.mT
        return self._multiply(left, right.mT, of_left, of_right, recipes, offs, out_dtype)

    def columns_by_columns(self, mat_a: Tensor, grad: Tensor, offs: Tensor, dtype, out_dtype, across: bool) -> Tensor:
        """``mat_a[start:end].T @ grad[start:end]`` of every group, computed transposed where ``across``."""
        kinds = torch.nn.functional.ScalingType
        if self._rowwise:
            both = (mat_a, FP8), (grad, dtype)
            found = [quantize_group_lines(each, offs, kind, **self._rounds) for each, kind in both]
            recipe = kinds.RowWise
        else:
            made = [quantize_whole_blocks(each.mT, offs, **self._rounds) for each in (mat_a, grad)]
            found, offs = [(values, factors) for values, factors, _ in made], made[0][2]
            recipe = kinds.BlockWise1x128
        (left, of_left), (right, of_right) = found[::-1] if across else found
        product = self._multiply(left, right.mT, of_left, of_right, (recipe, recipe), offs, out_dtype)
        return product.mT if across else product

    def _multiply(self, left, right, of_left, of_right, recipes, offs, out_dtype) -> Tensor:
        return scaled_grouped_mm(
            left, right, of_left, recipes[0], of_right, recipes[1], offs=offs, output_dtype=out_dtype,
            backend=self._backend,
        )  # fmt: skip
