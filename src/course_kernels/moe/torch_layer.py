"""The layer by torch alone, expert after expert, with the kernels' roundings. It reads the routing on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.moe import activations
from course_kernels.moe.form import Form, Gradients, Operands
from course_kernels.moe.routing import Routing


class _Expert(NamedTuple):
    """An expert's part of a layer: its number, its choices, their tokens, weights (rows, 1) and rows of x."""

    number: int
    choices: Tensor
    tokens: Tensor
    scale: Tensor
    rows: Tensor


def forward(operands: Operands, routing: Routing, form: Form) -> Tensor:
    """Compute the layer."""
    x, _, down, weights, _, down_bias = operands
    places = _no_rows(x, weights)
    with torch.autocast(x.device.type, enabled=False):
        for expert in _experts(operands, routing, form):
            hidden = activations.activate(_argument(expert, operands), form.activation, form.interleaved)
            result = hidden.to(x.dtype).float() @ down[expert.number].float().mT
            if down_bias is not None:
                result = result + down_bias[expert.number].float()
            result = result.to(x.dtype).float()
            places[expert.choices] = result if form.on_input else result * expert.scale
        return _sum(places, operands)


def backward(
    grad: Tensor, operands: Operands, routing: Routing, form: Form, needs: tuple[bool, ...],
    main_grads: tuple[Tensor | None, Tensor | None],
) -> Gradients:  # fmt: skip
    """Compute the gradients that ``needs`` selects; those of gate_up and down are added to ``main_grads`` instead, if
    given. Without autograd, which operators cannot count on."""
    x, gate_up, down, weights, _, down_bias = operands
    found = Gradients(*(torch.zeros_like(each) if need else None for each, need in zip(operands, needs)))
    totals = [found.gate_up, found.down]
    for i, main_grad in enumerate(main_grads):
        if main_grad is not None and needs[1 + i]:
            totals[i] = main_grad
    places = _no_rows(x, weights)
    with torch.autocast(x.device.type, enabled=False):
        for expert in _experts(operands, routing, form):
            e, scale = expert.number, 1.0 if form.on_input else expert.scale
            pre = _argument(expert, operands)
            given = grad[expert.tokens].float()
            hidden = activations.activate(pre, form.activation, form.interleaved)
            grad_hidden = (given @ down[e].float()).to(x.dtype).float()
            grad_pre = activations.activation_gradient(grad_hidden * scale, pre, form.activation, form.interleaved)
            grad_pre = grad_pre.to(x.dtype).float()
            grad_rows = (grad_pre @ gate_up[e].float()).to(x.dtype).float()
            places[expert.choices] = grad_rows * expert.scale if form.on_input else grad_rows
            if totals[0] is not None:
                totals[0][e] += grad_pre.mT @ expert.rows.float()
            if totals[1] is not None:
                totals[1][e] += given.mT @ (hidden * scale).to(x.dtype).float()
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


def _argument(expert: _Expert, operands: Operands) -> Tensor:
    """The activation's argument."""
    pre = expert.rows.float() @ operands.gate_up[expert.number].float().mT
    if operands.gate_up_bias is not None:
        pre = pre + operands.gate_up_bias[expert.number].float()
    return pre.to(operands.x.dtype)


def _no_rows(x: Tensor, weights: Tensor) -> Tensor:
    """A place for each choice, of zeros, so that each token's sum is in the order of its choices."""
    return torch.zeros(weights.shape[0] * weights.shape[1], x.shape[1], dtype=torch.float32, device=x.device)


def _sum(places: Tensor, operands: Operands) -> Tensor:
    return places.reshape(*operands.weights.shape, operands.x.shape[1]).sum(1).to(operands.x.dtype)
