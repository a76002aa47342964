"""The layer as torch sees it: operators with fake kernels, gradients and FLOP counts; and the plain way past them."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels import contexts, flops
from course_kernels.contexts import (
    functorch_level,
    is_batched_by_autograd,
    is_compiling,
    is_plain,
    is_profiling,
    wants_grad,
)
from course_kernels.engine.tuning import log_choice
from course_kernels.moe import layer
from course_kernels.moe.activations import decode, encode
from course_kernels.moe.checks import check_main_grads, check_operands
from course_kernels.moe.few_tokens import FewTokens, Scales
from course_kernels.moe.form import Form, Gradients, Operands
from course_kernels.moe.layer_plan import LayerPlan
from course_kernels.moe.routing import Routing


def feed_forward(operands: Operands, routing: Routing, form: Form) -> Tensor:
    """Compute a checked layer, in any of torch's contexts."""
    if is_plain(*operands, *routing) and not is_profiling():
        if not wants_grad(*operands):
            return layer.forward(operands, routing, form, keep=False)[0]
        return _Layer.apply(*operands, *routing, form, None, None)
    refuse_transforms("grouped_mm")
    if not is_compiling():
        flops.register(_flops())
    keep = wants_grad(*operands)
    return torch.ops.course_kernels.moe_feed_forward(*operands, *routing, *encoded(form), keep)[0]


def feed_forward_few(operands: Operands, ids: Tensor, form: Form, scales: Scales = (None, None)) -> Tensor:
    """Compute a checked layer that fits ``few_tokens``, in any of torch's contexts."""
    if is_plain(*operands, ids, *scales) and not is_profiling():
        log_choice(operands.in_words(), "triton", None, None, "few tokens: two kernels that multiply vectors")
        return FewTokens(operands, ids, form, scales).forward(operands, ids, scales)[0]
    refuse_transforms("grouped_mm")
    if not is_compiling():
        flops.register(_flops())
    return torch.ops.course_kernels.moe_feed_forward_few(*operands, ids, *scales, *encoded(form))


def is_by_kernels(operands: Operands, form: Form) -> bool:
    """Whether the layer is kernels' alone, however many tokens there are: torch computes no part of it, and nothing has
    to see the operator."""
    kernels = form.backend != "torch" and (form.backend != "auto" or operands.x.device.type == "cuda")
    sizes = operands.x.shape[1] and operands.weights.shape[1] and operands.gate_up.numel() and operands.down.numel()
    plain = is_plain(*operands) and not any(each is not None and each.is_neg() for each in operands)
    return bool(kernels and sizes and plain)


def feed_forward_planned(operands: Operands, ids: Tensor, plan: LayerPlan | FewTokens, scales: Scales) -> Tensor:
    """Compute a layer whose arguments have the key of a plan."""
    index = operands.x.device.index
    if index is not None and index != torch._C._cuda_getDevice():
        with torch.cuda.device(index):
            return feed_forward_planned(operands, ids, plan, scales)
    operands, routing = plan.prepare(operands, ids)
    if plan.keep:
        return _Layer.apply(*operands, *routing, plan.form, None, plan)
    return plan.forward(operands, routing, scales)[0]


def feed_forward_collecting(operands: Operands, routing: Routing, form: Form, main_grads) -> Tensor:
    """Compute a checked layer whose backward adds the weights' gradients to ``main_grads``, which are checked here."""
    check_collecting(main_grads, operands)
    if not wants_grad(*operands):
        return feed_forward(operands, routing, form)
    return _Layer.apply(*operands, *routing, form, tuple(main_grads), None)


class _Layer(torch.autograd.Function):
    """The plain way with gradients."""

    @staticmethod
    def forward(
        ctx, x, gate_up, down, weights, gate_up_bias, down_bias, ends, tokens, choices, rows, form, main_grads, plan
    ):
        operands = Operands(x, gate_up, down, weights, gate_up_bias, down_bias)
        routing = Routing(ends, tokens, choices, rows)
        if plan:
            out, pre = plan.forward(operands, routing)
        elif is_plain(*operands, *routing) and not is_profiling():
            out, pre = layer.forward(operands, routing, form, keep=True)
        else:  # with main_grads, where modes have to see the layer
            flops.register(_flops())
            out, pre = torch.ops.course_kernels.moe_feed_forward(*operands, *routing, *encoded(form), True)
        ctx.save_for_backward(*operands, *routing, pre)
        ctx.form, ctx.main_grads = form, main_grads
        return out

    @staticmethod
    def backward(ctx, grad):
        refuse_second_derivatives()
        *tensors, pre = ctx.saved_tensors
        operands, routing = Operands(*tensors[:6]), Routing(*tensors[6:])
        needs, main_grads = collected(ctx)
        if is_plain(grad) and not is_profiling():
            grad = prepared(grad, operands)
            found = layer.backward(grad, operands, pre, routing, ctx.form, tuple(needs), main_grads)
        else:
            found = _backward_dispatched(grad, operands, pre, routing, encoded(ctx.form), needs, main_grads)
        return *found, *(None,) * 7


def refuse_transforms(instead: str) -> None:
    """Raise under the transforms of ``torch.func``; name the functions from which the layer can be computed there."""
    contexts.refuse_transforms("moe_feed_forward", f"use backward(), or compute the layer from {instead}")


def refuse_second_derivatives() -> None:
    """Raise in a backward whose own gradients will be asked for."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "moe_feed_forward has no gradients of gradients (create_graph=True): differentiate it once, or compute the "
            "layer from grouped_mm, which has them"
        )


def check_collecting(main_grads, operands: Operands) -> None:
    """Raise unless a backward can add the weights' gradients to ``main_grads``."""
    if functorch_level() is not None:
        raise RuntimeError("main_grads must be None under torch.func, which does not see them written to")
    if torch.compiler.is_exporting():
        raise RuntimeError("main_grads must be None under torch.export: its graphs have no backward that adds to them")
    check_main_grads(main_grads, operands)


def collected(ctx) -> tuple[list[bool], tuple[Tensor | None, Tensor | None]]:
    """Which operands need a gradient in this backward, and the main gradients that collect those of the weights."""
    needs, main_grads = list(ctx.needs_input_grad[:6]), ctx.main_grads or (None, None)
    for i, main_grad in enumerate(main_grads, 1):
        if main_grad is not None and needs[i]:
            needs[i] = _is_asked_for(ctx, i)
    return needs, main_grads


def _is_asked_for(ctx, argument: int) -> bool:
    """Whether this backward computes an argument's gradient: one for other inputs alone must not add it."""
    try:
        return torch._C._will_engine_execute_node(ctx.next_functions[argument][0])
    except RuntimeError:  # autograd.grad for the weight itself
        raise RuntimeError(
            "main_grads must be None where torch.autograd.grad asks for a weight's gradient, which is added to it "
            "instead"
        ) from None


def prepared(grad: Tensor, operands: Operands) -> Tensor:
    """A result's gradient as kernels read it: of x's dtype, its last extent contiguous."""
    if is_batched_by_autograd(grad):
        raise RuntimeError(
            "moe_feed_forward takes no batched gradients (is_grads_batched=True): call torch.autograd.grad for each"
        )
    return grad.to(operands.x.dtype).resolve_neg().contiguous()


# ---- operators

ROUTED = "Tensor ends, Tensor tokens, Tensor choices, Tensor rows"
OPERANDS = "Tensor x, Tensor gate_up, Tensor down, Tensor weights, Tensor? gate_up_bias, Tensor? down_bias"
FORM = "str activation, bool interleaved, bool on_input, str backend, int? num_sms"
MAIN_GRADS = "Tensor(a!)? main_gate_up, Tensor(b!)? main_down"
GRADIENTS = "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor"
TAGS = (torch.Tag.pt2_compliant_tag,)
_library = torch.library.Library("course_kernels", "FRAGMENT")
_library.define(f"moe_feed_forward({OPERANDS}, {ROUTED}, {FORM}, bool keep) -> (Tensor, Tensor)", tags=TAGS)
_FEW = f"{OPERANDS}, Tensor top_k_index, Tensor? gate_up_scale, Tensor? down_scale, {FORM}"
_library.define(f"moe_feed_forward_few({_FEW}) -> Tensor", tags=TAGS)
_library.define(
    f"moe_feed_forward_backward(Tensor grad, {OPERANDS}, Tensor pre, {ROUTED}, {FORM}, bool[] needs) -> ({GRADIENTS})",
    tags=TAGS,
)
_library.define(
    f"moe_feed_forward_collect(Tensor grad, {OPERANDS}, Tensor pre, {ROUTED}, {FORM}, bool[] needs, {MAIN_GRADS}) "
    f"-> ({GRADIENTS})",
    tags=TAGS,
)


def encoded(form: Form) -> tuple:
    """A form as an operator's arguments."""
    return encode(form.activation), *form[1:]


def decoded(activation: str, *rest) -> Form:
    """A form of an operator's arguments."""
    return Form(decode(activation), *rest)


def _operator(*arguments):
    *form, keep = arguments[10:]
    return layer.forward(Operands(*arguments[:6]), Routing(*arguments[6:10]), decoded(*form), keep)


def _fake(*arguments):
    operands, routing = Operands(*arguments[:6]), Routing(*arguments[6:10])
    *form, keep = arguments[10:]
    form = decoded(*form)
    check_operands(operands, form)
    x = operands.x
    kept = (routing.tokens.shape[0], operands.gate_up.shape[1]) if keep and layer.keeps(x, form) else (0,)
    return x.new_empty(x.shape), x.new_empty(kept)


def _backward_operator(grad, *arguments, main_grads=(None, None)):
    operands, pre, routing, form, needs = _backward_arguments(arguments)
    found = layer.backward(prepared(grad, operands), operands, pre, routing, form, tuple(needs), main_grads)
    return or_empty(found, grad)


def _collecting_operator(*arguments):
    *arguments, main_gate_up, main_down = arguments
    return _backward_operator(*arguments, main_grads=(main_gate_up, main_down))


def or_empty(found, grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients as an operator returns them: an empty tensor for None."""
    return tuple(grad.new_empty(0) if each is None else each for each in found)


def fake_gradients(grad: Tensor, *arguments) -> tuple[Tensor, ...]:
    """The gradients of an operator's operands, the first six of its ``arguments``; the last says which are needed."""
    return or_empty(Gradients.empty(Operands(*arguments[:6]), arguments[-1]), grad)


def _backward_arguments(arguments):
    *form, needs = arguments[11:]
    return Operands(*arguments[:6]), arguments[6], Routing(*arguments[7:11]), decoded(*form), needs


def _setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:10], output[1])
    ctx.rest = inputs[10:-1]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # zeros for ``pre`` would be as large as what the layer keeps


def _gradients(ctx, grad, _):
    *tensors, pre = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[:6])
    found = _backward_dispatched(grad, tensors[:6], pre, tensors[6:], ctx.rest, needs)
    return *found, *(None,) * 10


def _backward_dispatched(
    grad, operands, pre, routing, form: tuple, needs: list[bool], main_grads=(None, None)
) -> list[Tensor | None]:  # fmt: skip
    """The gradients by an operator, which modes and transforms see; None for those that are added to
    ``main_grads``."""
    if not is_compiling():
        flops.register(_flops())
    ops, given = torch.ops.course_kernels, (grad, *operands, pre, *routing, *form, needs)
    if all(each is None for each in main_grads):
        found = ops.moe_feed_forward_backward(*given)
    else:
        found = ops.moe_feed_forward_collect(*given, *main_grads)
    return returned(found, needs, main_grads)


def returned(found, needs, main_grads) -> list[Tensor | None]:
    """The gradients of an operator that autograd gets: those that are needed and not added to ``main_grads``."""
    added = (False, *(each is not None for each in main_grads), False, False, False)
    return [each if need and not was else None for each, need, was in zip(found, needs, added, strict=True)]


def backward_flops(gate_up, down, weights, on_input: bool, needs: list[bool], for_down: bool) -> int:
    """The FLOP count of a backward, from the shapes of the operands and whose gradients it computes. ``for_down``:
    whether that of down needs the product with down, too."""
    needs_x, needs_gate_up, needs_down, needs_weights, needs_bias, _ = needs
    through_first = needs_x or (needs_weights and on_input)
    through_second = through_first or needs_gate_up or needs_weights or needs_bias or (needs_down and for_down)
    first, second = gate_up[1] * gate_up[2], down[1] * down[2]
    count = (through_first + needs_gate_up) * first + (through_second + needs_down) * second
    return 2 * weights[0] * weights[1] * count


def forward_flops(x, gate_up, down, weights, *others, out_shape=None) -> int:
    """The FLOP count of a forward, from the shapes of its arguments: for all T * k choices, since only the device knows
    which of them are of experts here."""
    return 2 * weights[0] * weights[1] * (gate_up[1] * gate_up[2] + down[1] * down[2])


def _flops() -> dict:
    """The FLOP counts of both operators."""

    def backward(grad, x, gate_up, down, weights, *others, out_shape=None) -> int:
        *form, needs = others
        return backward_flops(gate_up, down, weights, form[-3], needs, for_down=True)

    def collecting(*arguments, out_shape=None) -> int:
        return backward(*arguments[:-2])

    ops = torch.ops.course_kernels
    return dict.fromkeys((ops.moe_feed_forward, ops.moe_feed_forward_few), forward_flops) | {
        ops.moe_feed_forward_backward: backward, ops.moe_feed_forward_collect: collecting
    }  # fmt: skip


def implement(library: torch.library.Library, name: str, forward, backward, fakes, setup, gradients) -> None:
    """Give an operator and its ``_backward`` their kernels, their fake kernels (a pair), and the gradients."""

    def first_derivatives(ctx, *grads):
        refuse_second_derivatives()
        return gradients(ctx, *grads)

    for full, kernel, fake in ((name, forward, fakes[0]), (f"{name}_backward", backward, fakes[1])):
        library.impl(full, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"course_kernels::{full}", fake, lib=library)
    torch.library.register_autograd(f"course_kernels::{name}", first_derivatives, setup_context=setup, lib=library)


implement(
    _library, "moe_feed_forward", _operator, _backward_operator, (_fake, fake_gradients), _setup, _gradients
)  # fmt: skip


_library.impl("moe_feed_forward_collect", _collecting_operator, "CompositeExplicitAutograd")


def _few(*arguments) -> Tensor:
    operands, ids, scales = Operands(*arguments[:6]), arguments[6], arguments[7:9]
    return FewTokens(operands, ids, decoded(*arguments[9:]), scales).forward(operands, ids, scales)[0]


_library.impl("moe_feed_forward_few", _few, "CompositeExplicitAutograd")


@torch.library.register_fake("course_kernels::moe_feed_forward_few", lib=_library)
def _fake_few(x, *others) -> Tensor:
    return x.new_empty(x.shape)
