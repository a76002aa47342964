"""The layer by torch alone, expert after expert, with the kernels' roundings. It reads the routing on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.moe import activations
from course_kernels.moe.form import Form, Gradients, Operands
from course_kernels.moe.routing import Routing


def forward(operands: Operands, routing: Routing, form: Form) -> Tensor:
    """Compute the layer; differentiable by torch."""
    x, gate_up, down, weights, gate_up_bias, down_bias = operands
    dtype, parts, start = x.dtype, [], 0
    flat = weights.reshape(-1)
    with torch.autocast(x.device.type, enabled=False):
        for e, end in enumerate(routing.ends.tolist()):
            if end == start:
                continue
            part = slice(start, end)
            of_token, choice, start = routing.tokens[part].long(), routing.choices[part].long(), end
            rows, scale = x[of_token], flat[choice][:, None]
            if form.on_input:
                rows = (rows.float() * scale).to(dtype)
            pre = rows.float() @ gate_up[e].float().mT
            if gate_up_bias is not None:
                pre = pre + gate_up_bias[e].float()
            hidden = activations.activate(pre.to(dtype), form.activation, form.interleaved).to(dtype)
            result = hidden.float() @ down[e].float().mT
            if down_bias is not None:
                result = result + down_bias[e].float()
            result = result.to(dtype).float()
            parts.append((choice, result if form.on_input else result * scale))
        # Every choice has a place, zeros where it has no row: each token's sum is in the order of its choices.
        top_k = weights.shape[1]
        places = torch.zeros(x.shape[0] * top_k, x.shape[1], dtype=torch.float32, device=x.device)
        for choice, result in parts:
            places = places.index_copy(0, choice, result)
        return places.reshape(x.shape[0], top_k, x.shape[1]).sum(1).to(dtype)


def backward(
    grad: Tensor, operands: Operands, routing: Routing, form: Form, needs: tuple[bool, ...],
    main_grads: tuple[Tensor | None, Tensor | None],
) -> Gradients:  # fmt: skip
    """Compute the layer again, and the gradients by torch's autograd."""
    leaves = [None if each is None else each.detach().requires_grad_(wanted) for each, wanted in zip(operands, needs)]
    with torch.enable_grad():
        result = forward(Operands(*leaves), routing, form)
    wanted = [leaf for leaf, need in zip(leaves, needs) if need]
    if result.requires_grad:
        found = iter(torch.autograd.grad(result, wanted, grad, allow_unused=True))
    else:
        found = iter([None] * len(wanted))
    gradients = [next(found) if need else None for need in needs]
    gradients = [
        torch.zeros_like(each) if need and one is None else one for one, each, need in zip(gradients, operands, needs)
    ]
    for i, main_grad in ((1, main_grads[0]), (2, main_grads[1])):
        if main_grad is not None and gradients[i] is not None:
            main_grad += gradients[i].float()
            gradients[i] = None
    return Gradients(*gradients)
