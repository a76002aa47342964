"""The steps of ``moe.steps`` by torch alone, for all rows at once. Rows after the last end have any values, as those of
products have none."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.engine import torch_activations
from course_kernels.kernels.codes import Activation
from course_kernels.moe.routing import Routing


def gather(
    x: Tensor, routing: Routing, weights: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:  # fmt: skip
    """The same as ``steps.gather``."""
    rows = x[routing.tokens.long()]
    if weights is not None:
        rows = rows.float() * _of_rows(weights, routing)
    return rows.to(dtype or x.dtype)


def activation_gradient(
    grad: Tensor, pre: Tensor, routing: Routing, weights: Tensor | None, tokens: int, activation: Activation,
    interleaved: bool, with_activated: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """The same as ``steps.activation_gradient``."""
    scale = 1.0 if weights is None else _of_rows(weights, routing)
    grad, hidden = grad.float(), torch_activations.activate(pre, activation, interleaved)
    grad_pre = torch_activations.activation_gradient(grad * scale, pre, activation, interleaved).to(pre.dtype)
    found = None if weights is None else _of_choices((grad * hidden).sum(1), routing)
    return grad_pre, (hidden * scale).to(pre.dtype) if with_activated else None, found


def combine(rows: Tensor, routing: Routing, tokens: int, weights: Tensor | None = None) -> Tensor:
    """The same as ``steps.combine``."""
    here = routing.rows >= 0
    places = torch.where(here[..., None], rows[routing.rows.clamp(min=0).long()].float(), 0.0)
    if weights is not None:
        places = places * torch.where(here, weights, 0.0)[..., None]
    return places.sum(1).to(rows.dtype)


def dots(rows: Tensor, x: Tensor, routing: Routing) -> Tensor:
    """The same as ``steps.dots``."""
    of_rows = (rows.float() * x[routing.tokens.long()].float()).sum(1)
    return _of_choices(of_rows, routing)


def _of_rows(weights: Tensor, routing: Routing) -> Tensor:
    """The weight of each row (rows, 1)."""
    return weights.reshape(-1)[routing.choices.long()][:, None]


def _of_choices(of_rows: Tensor, routing: Routing) -> Tensor:
    """A number of each row, for each choice (T, k); 0 for choices without a row."""
    return torch.where(routing.rows >= 0, of_rows[routing.rows.clamp(min=0).long()], 0.0)
