"""The layer in float8 as torch sees it: operators with fake kernels, gradients and FLOP counts; and the plain way."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels import flops
from course_kernels.contexts import is_compiling, is_plain, is_profiling, wants_grad
from course_kernels.moe import fp8_layer
from course_kernels.moe.form import Form, Operands
from course_kernels.moe.fp8_checks import check_float8, check_operands_of
from course_kernels.moe.fp8_layer import Float8
from course_kernels.moe.routing import Routing
from course_kernels.moe.torch_ops import (
    FORM,
    GRADIENTS,
    MAIN_GRADS,
    OPERANDS,
    ROUTED,
    TAGS,
    backward_flops,
    check_collecting,
    collected,
    decoded,
    encoded,
    fake_gradients,
    forward_flops,
    implement,
    or_empty,
    prepared,
    refuse_second_derivatives,
    refuse_transforms,
    returned,
)  # fmt: skip


def feed_forward(operands: Operands, float8: Float8, routing: Routing, form: Form) -> Tensor:
    """Compute a checked layer, in any of torch's contexts."""
    if is_plain(*operands, *float8[1:], *routing) and not is_profiling():
        if not wants_grad(*operands):
            return fp8_layer.forward(operands, float8, routing, form, keep=False)[0]
        return _Layer.apply(*operands, *float8[1:], *routing, form, float8.recipe, None)
    refuse_transforms("to_fp8_then_scaled_grouped_mm")
    if not is_compiling():
        flops.register(_flops())
    keep = wants_grad(*operands)
    return torch.ops.course_kernels.moe_feed_forward_fp8(
        *operands, *float8[1:], *routing, *_encoded(form, float8.recipe), keep
    )[0]


def feed_forward_collecting(operands: Operands, float8: Float8, routing: Routing, form: Form, main_grads) -> Tensor:
    """Compute a checked layer whose backward adds the weights' gradients to ``main_grads``, which are checked here."""
    check_collecting(main_grads, operands)
    if not wants_grad(*operands):
        return feed_forward(operands, float8, routing, form)
    return _Layer.apply(*operands, *float8[1:], *routing, form, float8.recipe, tuple(main_grads))


class _Layer(torch.autograd.Function):
    """The plain way with gradients."""

    @staticmethod
    def forward(ctx, *arguments):
        *tensors, form, recipe, main_grads = arguments
        operands, float8, routing = _unpacked(tensors, recipe)
        if is_plain(*tensors) and not is_profiling():
            out, pre = fp8_layer.forward(operands, float8, routing, form, keep=True)
        else:  # with main_grads, where modes have to see the layer
            flops.register(_flops())
            out, pre = torch.ops.course_kernels.moe_feed_forward_fp8(*tensors, *_encoded(form, recipe), True)
        ctx.save_for_backward(*tensors, pre)
        ctx.form, ctx.recipe, ctx.main_grads = form, recipe, main_grads
        return out

    @staticmethod
    def backward(ctx, grad):
        refuse_second_derivatives()
        *tensors, pre = ctx.saved_tensors
        needs, main_grads = collected(ctx)
        if is_plain(grad) and not is_profiling():
            operands, float8, routing = _unpacked(tensors, ctx.recipe)
            grad = prepared(grad, operands)
            found = fp8_layer.backward(grad, operands, float8, pre, routing, ctx.form, tuple(needs), main_grads)
        else:
            found = _backward_dispatched(grad, tensors, pre, _encoded(ctx.form, ctx.recipe), needs, main_grads)
        return *found, *(None,) * 9


def _unpacked(tensors, recipe: str) -> tuple[Operands, Float8, Routing]:
    """The operands, the factors and the routing, of an operator's tensors in their order."""
    return Operands(*tensors[:6]), Float8(recipe, *tensors[6:8]), Routing(*tensors[8:12])


# ---- operators

_TENSORS = f"{OPERANDS}, Tensor? gate_up_scale, Tensor? down_scale, {ROUTED}"
_FORM = f"{FORM}, str recipe"
_library = torch.library.Library("course_kernels", "FRAGMENT")
_library.define(f"moe_feed_forward_fp8({_TENSORS}, {_FORM}, bool keep) -> (Tensor, Tensor)", tags=TAGS)
_library.define(
    f"moe_feed_forward_fp8_backward(Tensor grad, {_TENSORS}, Tensor pre, {_FORM}, bool[] needs) -> ({GRADIENTS})",
    tags=TAGS,
)
_library.define(
    f"moe_feed_forward_fp8_collect(Tensor grad, {_TENSORS}, Tensor pre, {_FORM}, bool[] needs, {MAIN_GRADS}) "
    f"-> ({GRADIENTS})",
    tags=TAGS,
)


def _encoded(form: Form, recipe: str) -> tuple:
    return *encoded(form), recipe


def _decoded(arguments) -> tuple[Operands, Float8, Routing, Form]:
    """An operator's arguments without its last one."""
    *form, recipe = arguments[12:]
    return *_unpacked(arguments[:12], recipe), decoded(*form)


def _operator(*arguments):
    *arguments, keep = arguments
    return fp8_layer.forward(*_decoded(arguments), keep)


def _fake(*arguments):
    *arguments, keep = arguments
    operands, float8, routing, form = _decoded(arguments)
    given = float8.gate_up_scale is not None or float8.down_scale is not None
    check_float8(operands, *float8[1:], None if given else float8.recipe)
    check_operands_of(operands, float8, form)
    kept = (routing.tokens.shape[0], operands.gate_up.shape[1]) if keep else (0,)
    return operands.x.new_empty(operands.x.shape), operands.x.new_empty(kept)


def _backward_operator(grad, *arguments, main_grads=(None, None)):
    pre, needs = arguments[12], arguments[-1]
    operands, float8, routing, form = _decoded((*arguments[:12], *arguments[13:-1]))
    grad_in = prepared(grad, operands)
    found = fp8_layer.backward(grad_in, operands, float8, pre, routing, form, tuple(needs), main_grads)
    return or_empty(found, grad)


def _collecting_operator(*arguments):
    *arguments, main_gate_up, main_down = arguments
    return _backward_operator(*arguments, main_grads=(main_gate_up, main_down))


def _setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:12], output[1])
    ctx.rest = inputs[12:-1]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradients(ctx, grad, _):
    *tensors, pre = ctx.saved_tensors
    return *_backward_dispatched(grad, tensors, pre, ctx.rest, list(ctx.needs_input_grad[:6])), *(None,) * 13


def _backward_dispatched(
    grad, tensors, pre, form: tuple, needs: list[bool], main_grads=(None, None)
) -> list[Tensor | None]:  # fmt: skip
    """The gradients by an operator, which modes and transforms see; None for those that are added to
    ``main_grads``."""
    if not is_compiling():
        flops.register(_flops())
    ops, given = torch.ops.course_kernels, (grad, *tensors, pre, *form, needs)
    if all(each is None for each in main_grads):
        found = ops.moe_feed_forward_fp8_backward(*given)
    else:
        found = ops.moe_feed_forward_fp8_collect(*given, *main_grads)
    return returned(found, needs, main_grads)


def _flops() -> dict:
    """The FLOP counts of both operators: those of the layer without float8."""

    def backward(grad, x, gate_up, down, weights, *others, out_shape=None) -> int:
        *form, needs = others
        return backward_flops(gate_up, down, weights, form[-4], needs, for_down=False)

    def collecting(*arguments, out_shape=None) -> int:
        return backward(*arguments[:-2])

    ops = torch.ops.course_kernels
    return {
        ops.moe_feed_forward_fp8: forward_flops, ops.moe_feed_forward_fp8_backward: backward,
        ops.moe_feed_forward_fp8_collect: collecting,
    }  # fmt: skip


implement(
    _library, "moe_feed_forward_fp8", _operator, _backward_operator, (_fake, fake_gradients), _setup, _gradients
)  # fmt: skip
_library.impl("moe_feed_forward_fp8_collect", _collecting_operator, "CompositeExplicitAutograd")
