"""The layer with adapters as torch sees it: operators of their own beside those of ``torch_ops``."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels import flops
from course_kernels.contexts import is_compiling, is_plain, is_profiling, wants_grad
from course_kernels.moe import layer
from course_kernels.moe.checks import check_operands
from course_kernels.moe.form import Form, Operands
from course_kernels.moe.lora import Adapters, Lora, scales_of
from course_kernels.moe.routing import Routing
from course_kernels.moe.torch_ops import (
    FORM,
    OPERANDS,
    ROUTED,
    TAGS,
    decoded,
    encoded,
    fake_gradients,
    implement,
    or_empty,
    prepared,
    refuse_second_derivatives,
    refuse_transforms,
)  # fmt: skip

TENSORS = 14  # the operands, the adapters, the routing
_FACTORS = "Tensor? gate_up_a, Tensor? gate_up_b, Tensor? down_a, Tensor? down_b"
_library = torch.library.Library("course_kernels", "FRAGMENT")
_library.define(
    f"moe_feed_forward_lora({OPERANDS}, {_FACTORS}, {ROUTED}, float[] scales, {FORM}, bool keep) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    tags=TAGS,
)
_library.define(
    f"moe_feed_forward_lora_backward(Tensor grad, {OPERANDS}, {_FACTORS}, {ROUTED}, Tensor pre, Tensor gate_up_thin, "
    f"Tensor down_thin, float[] scales, {FORM}, bool[] needs) -> ({', '.join(['Tensor'] * 10)})",
    tags=TAGS,
)


def feed_forward_adapted(operands: Operands, lora: Lora, routing: Routing, form: Form) -> Tensor:
    """Compute a checked layer with adapters, in any of torch's contexts."""
    tensors = (*operands, *lora[:4], *routing)
    scales = scales_of(lora)
    if is_plain(*tensors) and not is_profiling():
        if not wants_grad(*tensors):
            return layer.forward(operands, routing, form, False, Adapters.of(lora[:4], scales, operands.x.dtype))[0]
        return _Layer.apply(*tensors, scales, form)
    refuse_transforms("grouped_mm")
    if not is_compiling():
        flops.register(_flops())
    keep = wants_grad(*tensors)
    return torch.ops.course_kernels.moe_feed_forward_lora(*tensors, scales, *encoded(form), keep)[0]


class _Layer(torch.autograd.Function):
    """The plain way with gradients."""

    @staticmethod
    def forward(ctx, *arguments):
        tensors, (ctx.scales, ctx.form) = arguments[:TENSORS], arguments[TENSORS:]
        out, *kept = _forward(tensors, ctx.scales, ctx.form, True)
        ctx.save_for_backward(*tensors, *kept)
        return out

    @staticmethod
    def backward(ctx, grad):
        refuse_second_derivatives()
        saved, needs = ctx.saved_tensors, list(ctx.needs_input_grad[:10])
        if is_plain(grad) and not is_profiling():
            found = _backward(grad, saved, ctx.scales, ctx.form, needs)
        else:
            found = _backward_dispatched(grad, saved, ctx.scales, encoded(ctx.form), needs)
        return *found, *(None,) * 6


def _forward(tensors, scales, form: Form, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result, and what the backward wants: the activation's argument and the thin rows of either adapter."""
    operands, factors, routing = Operands(*tensors[:6]), tensors[6:10], Routing(*tensors[10:])
    adapters = Adapters.of(factors, scales, operands.x.dtype)
    out, pre = layer.forward(operands, routing, form, keep, adapters)
    given = zip(_kept_shapes(tensors, form, keep)[1:], adapters.thin)
    return out, pre, *(operands.x.new_empty(shape) if each is None or not keep else each for shape, each in given)


def _kept_shapes(tensors, form: Form, keep: bool) -> list[tuple[int, ...]]:
    """The shapes of what a forward returns for the backward."""
    keep, rows, factors = keep and layer.keeps(tensors[0], form), tensors[11].shape[0], tensors[6:10]
    columns = tensors[1].shape[1], *(each if each is None else each.shape[1] for each in factors[::2])
    return [(rows, each) if keep and each is not None else (0,) for each in columns]


def _backward(grad, saved, scales, form: Form, needs) -> list[Tensor | None]:
    """The gradients of the operands and of the adapters that ``needs`` selects."""
    operands, factors = Operands(*saved[:6]), saved[6:10]
    routing, (pre, *thin) = Routing(*saved[10:14]), saved[14:]
    adapters = Adapters.of(factors, scales, operands.x.dtype)
    adapters.thin, adapters.needs = thin, needs[6:]
    found = layer.backward(prepared(grad, operands), operands, pre, routing, form, tuple(needs[:6]), adapters=adapters)
    factor_grads = (
        each if each is None else each.to(factor.dtype) for each, factor in zip(adapters.gradients, factors)
    )  # fmt: skip
    return [*found, *factor_grads]


def _backward_dispatched(grad, saved, scales, form: tuple, needs) -> list[Tensor | None]:
    """The gradients by the operator, which modes and transforms see."""
    if not is_compiling():
        flops.register(_flops())
    found = torch.ops.course_kernels.moe_feed_forward_lora_backward(grad, *saved, scales, *form, needs)
    return [each if need else None for each, need in zip(found, needs)]


# ---- operators


def _operator(*arguments):
    tensors, scales, (*form, keep) = arguments[:TENSORS], arguments[TENSORS], arguments[TENSORS + 1 :]
    return _forward(tensors, scales, decoded(*form), keep)


def _fake(*arguments):
    x, (*form, keep) = arguments[0], arguments[TENSORS + 1 :]
    form = decoded(*form)
    check_operands(Operands(*arguments[:6]), form)
    return x.new_empty(x.shape), *map(x.new_empty, _kept_shapes(arguments, form, keep))


def _backward_operator(grad, *arguments):
    saved, scales, (*form, needs) = arguments[:17], arguments[17], arguments[18:]
    found = _backward(grad, saved, scales, decoded(*form), needs)
    return or_empty(found, grad)


def _backward_fake(grad, *arguments):
    pairs = zip(arguments[6:10], arguments[-1][6:])
    factors = (each.new_empty(each.shape) if need else None for each, need in pairs)
    return *fake_gradients(grad, *arguments), *or_empty(factors, grad)


def _setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:TENSORS], *output[1:])
    ctx.scales, *ctx.form = inputs[TENSORS:-1]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _gradients(ctx, grad, *_):
    found = _backward_dispatched(grad, ctx.saved_tensors, ctx.scales, ctx.form, list(ctx.needs_input_grad[:10]))
    return *found, *(None,) * 11


def _flops() -> dict:
    """The FLOP counts of both operators, for all T * k choices, as those without adapters."""

    def extents(shapes) -> list[int]:
        """Multiplications a row: of gate_up, of down, of the thin factors."""
        return [0 if each is None else each[1] * each[2] for each in (shapes[1], shapes[2], *shapes[6:10])]

    def forward(*shapes, out_shape=None) -> int:
        return 2 * shapes[3][0] * shapes[3][1] * sum(extents(shapes))

    def backward(grad, *shapes, out_shape=None) -> int:
        gate_up, down, first_a, first_b, second_a, second_b = extents(shapes)
        on_input, needs = shapes[-4], shapes[-1]
        needs_x, needs_gate_up, needs_down, needs_weights, needs_bias, _, *adapters = needs
        rows = needs_x or (needs_weights and on_input)
        thin = rows or adapters[0]
        argument = thin or needs_gate_up or needs_bias or adapters[1]
        hidden = argument or needs_down or needs_weights or adapters[2]
        count = hidden * (down + second_a + second_b) + needs_down * down + needs_gate_up * gate_up
        count += rows * (gate_up + first_a) + thin * first_b
        count += sum(need * each for need, each in zip(adapters, (first_a, first_b, second_a, second_b)))
        return 2 * shapes[3][0] * shapes[3][1] * count

    ops = torch.ops.course_kernels
    return {ops.moe_feed_forward_lora: forward, ops.moe_feed_forward_lora_backward: backward}


implement(
    _library, "moe_feed_forward_lora", _operator, _backward_operator, (_fake, _backward_fake), _setup, _gradients
)  # fmt: skip
