"""The layer in float8, forward and backward: which products and steps, in which order.

Forward: each token is rounded once and written to its rows of experts; times gate and up: ``pre``; one kernel activates
and rounds; times down; the weighted sum of each token's rows. Nothing of 16 bits is written but ``pre``, each expert's
result, and the layer's. The backward keeps x and ``pre`` alone, as the layer without float8 does: with a recipe for
training, it rounds the operands of its four products anew, each along what is summed over.

The activation is not in the first product's epilogue: a factor of a whole row needs all tiles of that row. A factor of
128 columns needs a tile with 128 columns of gate and as many of up, which most configurations do not have.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import FP8
from course_kernels.engine.gradient_layout import gradient_like, is_column_major
from course_kernels.engine.plans import execute
from course_kernels.engine.product import Product
from course_kernels.engine.scaling import BLOCKS, LINES, ROW
from course_kernels.fp8.training import scales_whole_lines
from course_kernels.moe import steps, torch_steps
from course_kernels.moe.form import Form, Gradients, Operands
from course_kernels.moe.fp8_steps import Rounded, Rounding, dequantized
from course_kernels.moe.layer import bias_dots, runs_in_torch
from course_kernels.moe.routing import Routing
from course_kernels.moe.steps import Combine
from course_kernels.packed.checks import check_call
from course_kernels.packed.group_sums import group_sums


class Float8(NamedTuple):
    """How a layer is computed in float8.

    Attributes:
        recipe: "rowwise" or "blockwise".
        gate_up_scale, down_scale: float32 factors of weights that are float8 already; both None where weights are
            rounded on the way.
    """

    recipe: str
    gate_up_scale: Tensor | None = None
    down_scale: Tensor | None = None


@torch.no_grad()
def forward(
    operands: Operands, float8: Float8, routing: Routing, form: Form, keep: bool, combine: Combine | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the layer. ``combine`` is the last step; None for the one of kernels, or of torch.

    Returns:
        The result (T, H), or what ``combine`` returns; and the activation's argument (T * k, N) where ``keep``, else an
        empty tensor.
    """
    x, gate_up, down, weights, gate_up_bias, down_bias = operands
    if _is_empty(operands):
        kept = (routing.tokens.shape[0], gate_up.shape[1]) if keep else (0,)
        return x.new_zeros(x.shape), x.new_zeros(kept)
    way, rounding = _way(operands, float8, form)
    rows = rounding.tokens(x, routing, weights if form.on_input else None)
    first = _forward_weights(gate_up, float8.gate_up_scale, rounding)
    pre = _multiply(rows, first, routing.ends, form, x.dtype, gate_up_bias)
    del rows, first
    hidden = rounding.rows(pre, routing, form.activation, form.interleaved)
    second = _forward_weights(down, float8.down_scale, rounding)
    result = _multiply(hidden, second, routing.ends, form, x.dtype, down_bias)
    out = (combine or way.combine)(result, routing, x.shape[0], None if form.on_input else weights)
    return out, pre if keep else x.new_empty(0)


@torch.no_grad()
def backward(
    grad: Tensor, operands: Operands, float8: Float8, pre: Tensor, routing: Routing, form: Form,
    needs: tuple[bool, ...], main_grads: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Gradients:  # fmt: skip
    """Compute the gradients of the operands that ``needs`` selects, from that of the result. Arguments as for
    ``layer.backward``. Those through float8 weights are of their values in x's dtype, and weights get none."""
    if _is_empty(operands):
        kept = [need and main_grad is None for need, main_grad in zip(needs, (None, *main_grads, None, None, None))]
        return Gradients.empty(operands, kept).zeroed()
    x, gate_up, down, weights, *_ = operands
    tokens, ends = x.shape[0], routing.ends
    needs_x, needs_gate_up, needs_down, needs_weights, needs_bias, needs_down_bias = needs
    way, rounding = _way(operands, float8, form)
    of_output, of_input = (None, weights) if form.on_input else (weights, None)
    shape = dict(activation=form.activation, interleaved=form.interleaved)
    first = needs_x or needs_gate_up or needs_bias or (needs_weights and form.on_input)
    found: dict[str, Tensor | None] = {}
    if first or needs_weights:
        if float8.down_scale is None:
            given = rounding.tokens(grad, routing)
            grad_hidden = _multiply(given, rounding.weights(down.mT), ends, form, x.dtype)
        else:
            given = way.gather(grad, routing)
            grad_hidden = _multiply_wide(given, dequantized(down, float8.down_scale, x.dtype), ends, form)
        del given
        grad_pre, _, found["weights"] = way.activation_gradient(
            grad_hidden, pre, routing, of_output, tokens, with_activated=False, **shape
        )
        del grad_hidden
    if needs_down:
        left = rounding.columns(grad, routing, gathers=True)
        right = rounding.columns(pre, routing, weights=of_output, **shape)
        found["down"] = _weight_gradient(left, right, down, main_grads[1], float8.recipe, form)
        del left, right
    if needs_gate_up:
        left = rounding.columns(grad_pre, routing)
        right = rounding.columns(x, routing, gathers=True, weights=of_input)
        found["gate_up"] = _weight_gradient(left, right, gate_up, main_grads[0], float8.recipe, form)
        del left, right
    if needs_bias:
        found["gate_up_bias"] = group_sums(grad_pre, ends, backend=form.backend).to(operands.gate_up_bias.dtype)
    if needs_x or (needs_weights and form.on_input):
        if float8.gate_up_scale is None:
            grad_rows = _multiply(
                rounding.rows(grad_pre, routing), rounding.weights(gate_up.mT), ends, form, x.dtype
            )  # fmt: skip
        else:
            grad_rows = _multiply_wide(grad_pre, dequantized(gate_up, float8.gate_up_scale, x.dtype), ends, form)
        if needs_weights and form.on_input:
            found["weights"] = way.dots(grad_rows, x, routing)
        if needs_x:
            found["x"] = way.combine(grad_rows, routing, tokens, of_input)
    if needs_down_bias:
        rows = way.gather(grad, routing, of_output, torch.float32)
        found["down_bias"] = group_sums(rows, ends, backend=form.backend).to(operands.down_bias.dtype)
    if needs_weights and not form.on_input and operands.down_bias is not None:
        found["weights"] = found["weights"] + bias_dots(grad, operands.down_bias, routing)
    if not needs_weights:
        found["weights"] = None
    return Gradients(**found)


def _is_empty(operands: Operands) -> bool:
    """Whether no expert has anything to compute."""
    return not (operands.x.numel() and operands.weights.numel() and operands.gate_up.shape[0])


def _way(operands: Operands, float8: Float8, form: Form):
    """The module of the steps, and the rounding: of kernels, or of torch alone."""
    in_torch = runs_in_torch(operands, form)
    if not in_torch:
        runtime.check_dtype("gate_up" if float8.gate_up_scale is not None else "fp8_recipe", FP8, operands.x.device,
                            "Pass backend='torch'.")  # fmt: skip
        runtime.check_can_launch(operands.x.device)
    return torch_steps if in_torch else steps, Rounding(float8.recipe, in_torch)


def _forward_weights(weight: Tensor, scale: Tensor | None, rounding: Rounding) -> Rounded:
    return rounding.weights(weight) if scale is None else Rounded(weight, scale)


def _multiply(
    rows: Rounded, weights: Rounded, ends: Tensor, form: Form, dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:  # fmt: skip
    """``rows @ weights[e].T`` of float8 rows (rows, D) and weights (E, lines, D), with their factors."""
    whole = rows.factors.dim() == 1
    of_weights = weights.factors if whole else weights.factors.mT
    product = Product.packed(
        rows.values, weights.values.mT, ends, bias, rows.factors, of_weights, scaling=ROW if whole else BLOCKS
    )
    return execute(product, form.options._replace(out_dtype=dtype), None, check_call)


def _multiply_wide(rows: Tensor, weights: Tensor, ends: Tensor, form: Form) -> Tensor:
    """``rows @ weights[e]``, not in float8."""
    return execute(Product.packed(rows, weights, ends), form.options, None, check_call)


def _weight_gradient(
    left: Rounded, right: Rounded, weight: Tensor, main_grad: Tensor | None, recipe: str, form: Form
) -> Tensor | None:
    """Sum ``left`` (M, rows) times ``right`` (N, rows) over each expert's rows: (E, M, N), stored like the weight, or
    added to ``main_grad``, which is float32."""
    out = written = gradient_like(weight, main_grad, weight.dtype)
    if is_column_major(out):
        left, right, written = right, left, out.mT
    product = Product.packed(
        left.values, right.values.mT, left.ends, None, left.factors, right.factors,
        scaling=ROW if scales_whole_lines(recipe) else LINES, accumulate=main_grad is not None,
    )  # fmt: skip
    execute(product, form.options._replace(out_dtype=out.dtype), written, check_call)
    if main_grad is None:
        return out
    torch.autograd.graph.increment_version(main_grad)
    return None
