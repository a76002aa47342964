"""The layer's forward and backward: which products and steps, in which order, on which buffers.

Forward, for the rows of experts: ``pre`` = x's rows times gate and up; its activation; times down; the weighted sum of
each token's rows. The backward keeps x and ``pre`` alone, and gathers rows and computes the activation again.

A product's kernel gathers its rows as it loads, and its epilogue activates (``is_fused``): on Hopper the one in CuTe
DSL, on older GPUs and for few rows the Triton kernel. Where neither does, such as on Hopper with adapters, or with a
backward where gate and up take turns, these steps have launches of their own around plain products. The weights'
gradients are products along the rows: there the CuTe kernel alone gathers, and for others rows are gathered first.

Adapters (LoRA) are products of low rank: rows times a thin factor come first, a product of their own, and the Triton
kernel of the main product adds them times the other factor to its sums. The kernel in CuTe DSL does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.engine.gradient_layout import gradient_like, is_column_major
from course_kernels.engine.hopper import cute
from course_kernels.engine.low_rank import LowRank
from course_kernels.engine.options import Options
from course_kernels.engine.plans import Known, PlanCache, execute, find, find_offered
from course_kernels.engine.product import ADD, STORE, Ends, Epilogue, Gated, GatedBackward, Problem, Product, Store
from course_kernels.engine.scaling import UNSCALED
from course_kernels.engine.signature import forms_of
from course_kernels.engine.tuning import log_choice
from course_kernels.moe import steps, torch_layer
from course_kernels.moe.form import Arriving, Form, Gradients, Operands
from course_kernels.moe.lora import Adapter, Adapters
from course_kernels.moe.routing import Routing
from course_kernels.moe.steps import Combine
from course_kernels.packed.checks import check_call, problem_of
from course_kernels.packed.group_sums import group_sums

# Rows of an average expert up to which the fused Triton kernel is worth it on a GPU whose plain products go through
# descriptors: it reads through pointers. On an H200 launches of their own around plain products take 0.82 of its time
# at 64 rows, forward, and 0.57 of a step's at 1,024.
FUSED_ROWS = 16
Kept: TypeAlias = dict[str, Known]  # the plans of a backward's products, by name
_kept = PlanCache()


def runs_in_torch(operands: Operands, form: Form) -> bool:
    """Whether torch alone computes the layer: as asked for, or on a CPU. Without an extent there is nothing to
    launch."""
    x, gate_up, down, weights, *_ = operands
    return not (keeps(x, form) and x.numel() and gate_up.numel() and down.numel() and weights.numel())


def keeps(x: Tensor, form: Form) -> bool:
    """Whether a forward keeps the activation's argument, however large it is: torch's way keeps nothing."""
    return form.backend != "torch" and not (form.backend == "auto" and x.device.type == "cpu")


def _why_torch(operands: Operands, form: Form) -> str:
    if form.backend == "torch":
        return "as named"
    return "it is empty" if keeps(operands.x, form) else "operands are on a CPU"


def is_fused(operands: Operands, form: Form, count: int, keep: bool, adapted: bool = False) -> bool:
    """Whether the products' kernels gather and activate, of ``count`` rows. ``keep``: for a backward, which reads the
    activation's argument; a backward decides the same as the forward before it."""
    if form.on_input:
        return False
    x, device = operands.x, operands.x.device
    few = count <= FUSED_ROWS * operands.gate_up.shape[0]
    if few or device.type != "cuda" or not runtime.supports_descriptors(device):
        return True
    hopper = form.backend != "triton" and cute.runs_on(device) and cute.installed() and x.dtype != torch.float32
    # Where gate and up take turns it reads rows of weights, and stores no argument.
    taken = not form.interleaved or (not keep and operands.gate_up.stride(2) == 1)
    return hopper and taken and not adapted


@torch.no_grad()
def forward(
    operands: Operands, routing: Routing, form: Form, keep: bool, adapters: Adapters | None = None,
    combine: Combine = steps.combine, arriving: Arriving | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute the layer. It stores the thin rows of ``adapters`` in these. ``combine`` is the last step of kernels;
    torch sums on its own. Tokens x may be ``arriving``.

    Returns:
        The result (T, H), or what ``combine`` returns; and the activation's argument (T * k, N) where ``keep``, else an
        empty tensor.
    """
    x, gate_up, down, weights, gate_up_bias, down_bias = operands
    tokens, count = x.shape[0], routing.tokens.shape[0]
    if runs_in_torch(operands, form):
        log_choice(operands.in_words(), "torch", None, None, _why_torch(operands, form))
        _settled(arriving)
        kept = (count, gate_up.shape[1]) if keep and keeps(x, form) else (0,)
        return torch_layer.forward(operands, routing, form, adapters), x.new_empty(kept)
    runtime.check_can_launch(x.device)
    fused = is_fused(operands, form, count, keep, adapters is not None)
    if not fused or adapters is not None:
        arriving = _settled(arriving)
    width, inner = gate_up.shape[1], down.shape[2]
    pre = torch.empty(count, width, dtype=x.dtype, device=x.device) if keep else None
    first, second = (None, None) if adapters is None else adapters.parts
    if fused:
        hidden = torch.empty(count, inner, dtype=x.dtype, device=x.device)
        added = _low_rank(x, first, Ends(routing.ends, routing.tokens), form)
        epilogue = Gated(form.activation, form.interleaved, pre, gate_up_bias, added)
        _gathered(x, gate_up.mT, routing, epilogue, hidden, form, arriving=arriving)
    else:
        rows = steps.gather(x, routing, weights if form.on_input else None)
        added = _low_rank(rows, first, Ends(routing.ends), form)
        pre = _multiply(rows, gate_up.mT, routing.ends, form, gate_up_bias, pre, added)
        del rows
        hidden = steps.activate(pre, routing, tokens, form.activation, form.interleaved)
    added_last = _low_rank(hidden, second, Ends(routing.ends), form)
    if adapters is not None:
        adapters.thin = [each and each.left for each in (added, added_last)]
    result = _multiply(hidden, down.mT, routing.ends, form, down_bias, added=added_last)
    out = combine(result, routing, tokens, None if form.on_input else weights)
    return out, pre if keep else x.new_empty(0)


@torch.no_grad()
def backward(
    grad: Tensor, operands: Operands, pre: Tensor, routing: Routing, form: Form, needs: tuple[bool, ...],
    main_grads: tuple[Tensor | None, Tensor | None] = (None, None), adapters: Adapters | None = None,
    combine: Combine = steps.combine, arriving: Arriving | None = None,
) -> Gradients:  # fmt: skip
    """Compute the gradients of the operands that ``needs`` selects, from that of the result.

    Args:
        grad: (T, H) of x's dtype.
        operands, routing, form: as for ``forward``.
        pre: as ``forward`` returned it.
        needs: for each of ``Operands``, whether its gradient is wanted.
        main_grads: float32 tensors to which the gradients of gate_up and down are added; None returns them.
        adapters: with what ``forward`` stored there, and the needs. Their gradients are stored there.
        combine: makes x's gradient from the rows'; torch alone sums on its own.
        arriving: of ``grad``, which may be on its way.
    """
    if runs_in_torch(operands, form):
        _settled(arriving)
        return torch_layer.backward(grad, operands, routing, form, needs, main_grads, adapters)
    kept = None if adapters else _kept_for(form, needs, grad, pre, *operands, *routing, *main_grads)
    x, gate_up, down, weights, *_ = operands
    tokens, ends = x.shape[0], routing.ends
    count = routing.tokens.shape[0]
    needs_x, needs_gate_up, needs_down, needs_weights, needs_bias, needs_down_bias = needs
    found: dict[str, Tensor | None] = {}
    of_output = None if form.on_input else weights
    (first_part, second_part), adapted = ((None, None), (False,) * 4) if adapters is None else (
        adapters.parts, adapters.needs
    )  # fmt: skip
    needs_rows = needs_x or (needs_weights and form.on_input)
    first = needs_rows or needs_gate_up or needs_bias or adapted[0] or adapted[1]
    fused, grad_rows = is_fused(operands, form, count, True, adapters is not None), None
    begins = first or needs_down or needs_weights or adapted[2]
    if not (fused and begins) or adapters is not None:
        arriving = _settled(arriving)
    if begins:
        if fused:
            added = _low_rank(grad, second_part, Ends(ends, routing.tokens), form, crossed=True)
            grad_pre, hidden, found["weights"] = _fused_gradient(
                grad, operands, pre, routing, form, added, kept, arriving
            )
        else:
            grad_rows = steps.gather(grad, routing)
            added = _low_rank(grad_rows, second_part, Ends(ends), form, crossed=True)
            grad_hidden = _multiply(grad_rows, down, ends, form, added=added, kept=kept, name="hidden")
            grad_pre, hidden, found["weights"] = steps.activation_gradient(
                grad_hidden, pre, routing, of_output, tokens, form.activation, form.interleaved
            )
            del grad_hidden
        if adapted[2]:
            adapters.gradients[2] = _adapter_gradient(added, hidden, ends, form)
    if adapted[3]:
        grad_rows = steps.gather(grad, routing) if grad_rows is None else grad_rows
        thin = adapters.thin[1]
        if of_output is not None:
            thin = (thin * weights.reshape(-1)[routing.choices][:, None]).to(thin.dtype)
        adapters.gradients[3] = _adapter_gradient(LowRank(grad_rows, thin, second_part.scale), thin, ends, form)
    if needs_down:
        adds = main_grads[1] is not None
        out = gradient_like(down, main_grads[1], grad.dtype)
        if not (fused and _gathered_gradient(grad.mT, hidden, "a", out, routing, form, adds, kept, "down")):
            grad_rows = steps.gather(grad, routing) if grad_rows is None else grad_rows
            _weight_gradient(grad_rows.mT, hidden, out, ends, form, adds, kept, "down")
        found["down"] = None if adds else out
        del hidden
    del grad_rows
    if needs_gate_up:
        adds = main_grads[0] is not None
        out = gradient_like(gate_up, main_grads[0], grad.dtype)
        if not (fused and _gathered_gradient(grad_pre.mT, x, "b", out, routing, form, adds, kept, "gate_up")):
            rows = steps.gather(x, routing, weights if form.on_input else None)
            _weight_gradient(grad_pre.mT, rows, out, ends, form, adds, kept, "gate_up")
            del rows
        found["gate_up"] = None if adds else out
    added = _low_rank(grad_pre, first_part, Ends(ends), form, crossed=True) if needs_rows or adapted[0] else None
    if adapted[0]:
        rows = steps.gather(x, routing, weights if form.on_input else None)
        adapters.gradients[0] = _adapter_gradient(added, rows, ends, form)
        del rows
    if adapted[1]:
        thin = adapters.thin[0]
        adapters.gradients[1] = _adapter_gradient(LowRank(grad_pre, thin, first_part.scale), thin, ends, form)
    if needs_bias:
        sums = group_sums(grad_pre, ends, backend=form.backend)
        found["gate_up_bias"] = sums.to(operands.gate_up_bias.dtype)
    if needs_rows:
        grad_x_rows = _multiply(grad_pre, gate_up, ends, form, added=added, kept=kept, name="x")
        if needs_weights and form.on_input:
            found["weights"] = steps.dots(grad_x_rows, x, routing)
        if needs_x:
            found["x"] = combine(grad_x_rows, routing, tokens, weights if form.on_input else None)
    if needs_down_bias:
        rows = steps.gather(grad, routing, of_output, torch.float32)
        found["down_bias"] = group_sums(rows, ends, backend=form.backend).to(operands.down_bias.dtype)
    if needs_weights and not form.on_input and operands.down_bias is not None:
        found["weights"] += bias_dots(grad, operands.down_bias, routing)
    if not needs_weights:
        found["weights"] = None
    return Gradients(**found)


def _multiply(
    a: Tensor, b: Tensor, ends: Tensor, form: Form, bias: Tensor | None = None, out: Tensor | None = None,
    added: LowRank | None = None, kept: Kept | None = None, name: str = "",
) -> Tensor:  # fmt: skip
    """A plain product of rows of experts; ``kept`` and ``name`` are a backward's."""
    if added is not None:
        out = torch.empty(a.shape[0], b.shape[2], dtype=a.dtype, device=a.device) if out is None else out
        _multiply_rows(a, b, Ends(ends), Store(bias, True, added), out, form)
        return out
    product = Product.packed(a, b, ends, bias)
    if kept is None:
        return execute(product, form.options, out, check_call)
    out = torch.empty(a.shape[0], b.shape[2], dtype=a.dtype, device=a.device)
    return _known(kept, name, find, product, form.options, out).run(product, out)


def _weight_gradient(
    left: Tensor, right: Tensor, out: Tensor, ends: Tensor, form: Form, adds: bool, kept: Kept | None, name: str
) -> None:  # fmt: skip
    """Write a weight's gradient to ``out`` (E, M, N), or add it to these float32 numbers."""
    options = form.options._replace(out_dtype=torch.float32) if adds else form.options
    written = out
    if is_column_major(out):
        left, right, written = right.mT, left.mT, out.mT
    product = Product.packed(left, right, ends, accumulate=adds)
    if adds or kept is None:
        execute(product, options, written, check_call)
    else:
        _known(kept, name, find, product, options, written).run(product, written)
    if adds:
        torch.autograd.graph.increment_version(out)


def _gathered_gradient(
    left: Tensor, right: Tensor, operand: str, out: Tensor, routing: Routing, form: Form, adds: bool, kept: Kept | None,
    name: str,
) -> bool:  # fmt: skip
    """``_weight_gradient`` whose operand "a", ``left``, or "b", ``right``, is of tokens: the CuTe kernel gathers their
    rows. Return whether it takes the product; if not, nothing was done."""
    written = out
    if is_column_major(out):
        left, right, written, operand = right.mT, left.mT, out.mT, "a" if operand == "b" else "b"
    options, rows = form.options, Ends(routing.ends, routing.tokens, operand)

    def problem() -> Problem:
        extents = *written.shape, routing.tokens.shape[0]
        return Problem("k", *extents, tuple(written.shape), out.dtype, "ieee", options, accumulate=adds)

    product = Product(left, right, rows, UNSCALED, ADD if adds else STORE)
    known = _known(kept, f"{name}, gathered", find_offered, product, options, written, problem)
    if known.plan is None:
        return False
    known.run(product, written)
    if adds:
        torch.autograd.graph.increment_version(out)
    return True


def _kept_for(form: Form, needs: tuple[bool, ...], *tensors: Tensor | None) -> Kept | None:
    """The plans of products that earlier backwards have left for tensors of these shapes, strides and dtypes; empty
    before the first one. None if the tensors have to be checked in each call, as where one has no memory."""
    forms = forms_of(*tensors)
    if forms is None:
        return None
    key = form, needs, forms, tensors[0].dtype == torch.float32 and runtime.allows_tf32()
    kept = _kept.get(key)
    if kept is None:
        _kept.put(key, kept := {})
    return kept


def _known(
    kept: Kept | None, name: str, how: Callable[..., Known], product: Product, options: Options, out: Tensor,
    problem: Callable[[], Problem] | None = None,
) -> Known:  # fmt: skip
    """The plan of a backward's product: the one that is kept under a name, or what ``how`` finds."""
    known = None if kept is None else kept.get(name)
    if known is None:
        known = how(product, options, out, problem or (lambda: problem_of(product, options)))
        if kept is not None:
            kept[name] = known
    return known


def _fused_gradient(
    grad: Tensor, operands: Operands, pre: Tensor, routing: Routing, form: Form, added: LowRank | None,
    kept: Kept | None, arriving: Arriving | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """``steps.activation_gradient`` in the epilogue of the product before it."""
    down, weights, count = operands.down, operands.weights, routing.tokens.shape[0]
    inner = down.shape[2]
    grad_pre = torch.empty_like(pre)
    hidden = torch.empty(count, inner, dtype=pre.dtype, device=pre.device)
    parts = torch.empty(count, -(-inner // 32), dtype=torch.float32, device=pre.device)
    of_rows = steps.gather_weights(weights, routing)
    epilogue = GatedBackward(form.activation, form.interleaved, pre, of_rows, hidden, parts, added)
    _gathered(grad, down, routing, epilogue, grad_pre, form, kept, arriving)
    return grad_pre, hidden, steps.sum_parts(parts, routing, weights)


def _gathered(
    x: Tensor, b: Tensor, routing: Routing, epilogue: Epilogue, out: Tensor, form: Form, kept: Kept | None = None,
    arriving: Arriving | None = None,
) -> None:  # fmt: skip
    """A product whose rows of A are gathered, and whose epilogue writes further results. The CuTe kernel takes rows
    that are ``arriving`` piece by piece."""
    if arriving is not None:
        rows, options = Ends(*routing[:2], pieces=arriving.pieces(b.shape[2])), form.options
        product = Product(x, b, rows, UNSCALED, epilogue)
        problem = functools.partial(problem_of_rows, product, options, out)
        known = _known(kept, "arriving", find_offered, product, options, out, problem)
        if known.plan is not None:
            known.run(product, out)
        arriving.settle()
        if known.plan is not None:
            return
    _multiply_rows(x, b, Ends(routing.ends, routing.tokens), epilogue, out, form, kept)


def _settled(arriving: Arriving | None) -> None:
    """Wait for rows that are on their way."""
    if arriving is not None:
        arriving.settle()


def _multiply_rows(
    x: Tensor, b: Tensor, rows: Ends, epilogue: Epilogue, out: Tensor, form: Form, kept: Kept | None = None
) -> None:
    """A product with any epilogue, of rows that may be gathered. What follows the last end is not written."""
    product, options = Product(x, b, rows, UNSCALED, epilogue), form.options
    problem = functools.partial(problem_of_rows, product, options, out)
    _known(kept, "gathered", find, product, options, out, problem).run(product, out)


def problem_of_rows(product: Product, options: Options, out: Tensor) -> Problem:
    """The problem of a product of rows of experts that needs no checks."""
    groups, depth, columns = product.b.shape
    precision = "tf32" if product.a.dtype == torch.float32 and runtime.allows_tf32() else "ieee"
    return Problem(
        "m", groups, product.rows_of_a, columns, depth, tuple(out.shape), out.dtype, precision, options,
        keep_tail=product.epilogue.keep_tail,
    )  # fmt: skip


def _low_rank(a: Tensor, part: Adapter | None, rows: Ends, form: Form, crossed: bool = False) -> LowRank | None:
    """The low-rank part of a product of the rows ``a``; with ``crossed``, of a product of their gradient."""
    if part is None:
        return None
    part = part.crossed if crossed else part
    count = a.shape[0] if rows.index is None else rows.index.shape[0]
    thin = torch.empty(count, part.a.shape[1], dtype=a.dtype, device=a.device)
    _multiply_rows(a, part.a.mT, rows, Store(None, True), thin, form)
    return LowRank(thin, part.b.mT, part.scale)


def _adapter_gradient(left: LowRank, right: Tensor, ends: Tensor, form: Form) -> Tensor:
    """A factor's gradient, float32: for each expert the product of rows ``left.left`` and ``right``, times the
    scale."""
    options = form.options._replace(out_dtype=torch.float32)
    return execute(Product.packed(left.left.mT, right, ends), options, None, check_call).mul_(left.scale)


def bias_dots(grad: Tensor, bias: Tensor, routing: Routing) -> Tensor:
    """The dot product of each choice's gradient and its expert's bias: float32 (T, k), 0 for choices without a row."""
    rows = routing.rows
    everywhere = grad.float() @ bias.float().mT  # (T, E)
    expert = torch.searchsorted(routing.ends, rows.clamp(min=0), right=True, out_int32=False)
    found = everywhere.gather(1, expert.clamp(max=bias.shape[0] - 1))
    return torch.where(rows < 0, 0.0, found)
