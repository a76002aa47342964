"""The layer by torch alone, expert after expert, with the kernels' roundings. It reads the routing on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.engine.torch_activations import activate, activation_gradient
from course_kernels.moe.form import Form, Gradients, Operands
from course_kernels.moe.lora import Adapter, Adapters
from course_kernels.moe.routing import Routing


class _Expert(NamedTuple):
    """An expert's part of a layer: its number, its choices, their tokens, weights (rows, 1) and rows of x."""

    number: int
    choices: Tensor
    tokens: Tensor
    scale: Tensor
    rows: Tensor


def forward(operands: Operands, routing: Routing, form: Form, adapters: Adapters | None = None) -> Tensor:
    """Compute the layer."""
    x, _, down, weights, _, down_bias = operands
    places = _no_rows(x, weights)
    first, second = (None, None) if adapters is None else adapters.parts
    with torch.autocast(x.device.type, enabled=False):
        for expert in _experts(operands, routing, form):
            hidden = activate(_argument(expert, operands, first), form.activation, form.interleaved)
            result = hidden.to(x.dtype).float() @ down[expert.number].float().mT
            result = _added(result, hidden.to(x.dtype), second, expert.number)
            if down_bias is not None:
                result = result + down_bias[expert.number].float()
            result = result.to(x.dtype).float()
            places[expert.choices] = result if form.on_input else result * expert.scale
        return _sum(places, operands)


def backward(
    grad: Tensor, operands: Operands, routing: Routing, form: Form, needs: tuple[bool, ...],
    main_grads: tuple[Tensor | None, Tensor | None], adapters: Adapters | None = None,
) -> Gradients:  # fmt: skip
    """Compute the gradients that ``needs`` selects; those of gate_up and down are added to ``main_grads`` instead, if
    given. Without autograd, which operators cannot count on."""
    x, gate_up, down, weights, _, down_bias = operands
    found = Gradients.empty(operands, needs).zeroed()
    totals = [found.gate_up, found.down]
    for i, main_grad in enumerate(main_grads):
        if main_grad is not None and needs[1 + i]:
            totals[i] = main_grad
    places = _no_rows(x, weights)
    first, second = (None, None) if adapters is None else adapters.parts
    if adapters is not None:
        of_parts = [each for part in adapters.parts for each in ((None, None) if part is None else part[:2])]
        adapters.gradients = [
            torch.zeros(each.shape, dtype=torch.float32, device=x.device) if need else None
            for each, need in zip(of_parts, adapters.needs)
        ]
    with torch.autocast(x.device.type, enabled=False):
        for expert in _experts(operands, routing, form):
            e, scale = expert.number, 1.0 if form.on_input else expert.scale
            pre = _argument(expert, operands, first)
            given = grad[expert.tokens].float()
            hidden = activate(pre, form.activation, form.interleaved)
            grad_hidden = _added(given @ down[e].float(), given, second and second.crossed, e).to(x.dtype).float()
            grad_pre = activation_gradient(grad_hidden * scale, pre, form.activation, form.interleaved)
            grad_pre = grad_pre.to(x.dtype).float()
            grad_rows = _added(grad_pre @ gate_up[e].float(), grad_pre, first and first.crossed, e)
            grad_rows = grad_rows.to(x.dtype).float()
            places[expert.choices] = grad_rows * expert.scale if form.on_input else grad_rows
            if totals[0] is not None:
                totals[0][e] += grad_pre.mT @ expert.rows.float()
            if totals[1] is not None:
                totals[1][e] += given.mT @ (hidden * scale).to(x.dtype).float()
            if adapters is not None:
                _adapter_gradients(adapters, 0, e, expert.rows, grad_pre)
                _adapter_gradients(adapters, 1, e, hidden, given, scale)
            if found.weights is not None:
                left, right = (grad_rows, x[expert.tokens].float()) if form.on_input else (grad_hidden, hidden)
                dots = (left * right).sum(1)
                if down_bias is not None and not form.on_input:
                    dots = dots + given @ down_bias[e].float()
                found.weights.view(-1)[expert.choices] = dots
            if found.gate_up_bias is not None:
                found.gate_up_bias[e] = grad_pre.sum(0)
            if found.down_bias is not None:
                found.down_bias[e] = (given * scale).sum(0)
        if found.x is not None:
            found.x.copy_(_sum(places, operands))
    kept = [None if main_grad is not None else each for each, main_grad in zip(found[1:3], main_grads)]
    return found._replace(gate_up=kept[0], down=kept[1])


def _experts(operands: Operands, routing: Routing, form: Form) -> Iterator[_Expert]:
    """The experts that have rows."""
    x, start, flat = operands.x, 0, operands.weights.reshape(-1)
    for number, end in enumerate(routing.ends.tolist()):
        if end == start:
            continue
        tokens, choices = (each[start:end].long() for each in (routing.tokens, routing.choices))
        rows, scale, start = x[tokens], flat[choices][:, None], end
        if form.on_input:
            rows = (rows.float() * scale).to(x.dtype)
        yield _Expert(number, choices, tokens, scale, rows)


def _argument(expert: _Expert, operands: Operands, adapter: Adapter | None) -> Tensor:
    """The activation's argument."""
    pre = expert.rows.float() @ operands.gate_up[expert.number].float().mT
    pre = _added(pre, expert.rows, adapter, expert.number)
    if operands.gate_up_bias is not None:
        pre = pre + operands.gate_up_bias[expert.number].float()
    return pre.to(operands.x.dtype)


def _added(product: Tensor, rows: Tensor, adapter: Adapter | None, expert: int) -> Tensor:
    """A product of rows, and what the adapter adds to it."""
    return product if adapter is None else product + adapter.widened(adapter.thin(rows, expert), expert)


def _adapter_gradients(
    adapters: Adapters, product: int, expert: int, rows: Tensor, given: Tensor, weights: Tensor | float = 1.0
) -> None:  # fmt: skip
    """Store the gradients of a product's adapter: of its rows, its result's gradient, and the factors of that."""
    part, (of_a, of_b) = adapters.parts[product], adapters.gradients[2 * product : 2 * product + 2]
    dtype = rows.dtype if part is None else part.a.dtype
    if of_a is not None:
        of_rows = part.crossed.thin(given, expert).float()
        of_a[expert] = part.scale * (of_rows.mT @ (rows * weights).to(dtype).float())
    if of_b is not None:
        thin = (part.thin(rows.to(dtype), expert) * weights).to(dtype)
        of_b[expert] = part.scale * (given.mT @ thin.float())


def _no_rows(x: Tensor, weights: Tensor) -> Tensor:
    """A place for each choice, of zeros, so that each token's sum is in the order of its choices."""
    return torch.zeros(weights.shape[0] * weights.shape[1], x.shape[1], dtype=torch.float32, device=x.device)


def _sum(places: Tensor, operands: Operands) -> Tensor:
    return places.reshape(*operands.weights.shape, operands.x.shape[1]).sum(1).to(operands.x.dtype)
