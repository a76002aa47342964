"""The two halves of a journey, each the other's derivative."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_kernels.distributed.plan import Plan
from course_kernels.moe import Routing


class Choices(NamedTuple):
    """The choices of tokens that have arrived.

    Attributes:
        index: int32 (R, k), ids of this rank's experts; -1 for choices of other ranks.
        weights: float32 (R, k), 0 for choices of other ranks. Differentiable.
        routing: of ``index``, for ``moe_feed_forward``. Its buffers have as many rows as there are choices.
    """

    index: Tensor
    weights: Tensor
    routing: Routing


class Transport(Protocol):
    """A way between ranks."""

    def plan(self, top_k_index: Tensor) -> Plan:
        """Route tokens, and agree with all ranks on it."""
        ...

    def scatter(self, x: Tensor, plan: Plan) -> Tensor:
        """Send tokens (T, H) to their ranks: (R, H), the rows that have arrived here."""
        ...

    def collect(self, rows: Tensor, plan: Plan) -> Tensor:
        """Return rows (R, H) to their tokens' ranks and sum each token's: (T, H)."""
        ...

    def scatter_weights(self, weights: Tensor, plan: Plan) -> Tensor:
        """Send float32 weights (T, k) along: (R, k), 0 for choices of other ranks."""
        ...

    def collect_weights(self, values: Tensor, plan: Plan) -> Tensor:
        """Return float32 values (R, k) to their choices: (T, k)."""
        ...


class _Dispatch(torch.autograd.Function):
    """x (T, H) and float32 weights (T, k) to their ranks. The gradient travels as ``combine`` does."""

    @staticmethod
    def forward(ctx, x, weights, transport: Transport, plan: Plan):
        ctx.transport, ctx.plan = transport, plan
        return transport.scatter(settled(x), plan), transport.scatter_weights(settled(weights), plan)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_rows, grad_weights):
        needs_x, needs_weights, *_ = ctx.needs_input_grad
        x = ctx.transport.collect(settled(grad_rows), ctx.plan) if needs_x else None
        weights = ctx.transport.collect_weights(settled(grad_weights), ctx.plan) if needs_weights else None
        return x, weights, None, None


class _Combine(torch.autograd.Function):
    """Results (R, H) to the ranks of their tokens, and summed there. The gradient travels as ``dispatch`` does."""

    @staticmethod
    def forward(ctx, rows, transport: Transport, plan: Plan):
        ctx.transport, ctx.plan = transport, plan
        return transport.collect(settled(rows), plan)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return ctx.transport.scatter(settled(grad), ctx.plan), None, None


def dispatch(x: Tensor, weights: Tensor, transport: Transport, plan: Plan) -> tuple[Tensor, Tensor]:
    """Send x (T, H) and float32 weights (T, k) to their ranks: (R, H) and (R, k), differentiable."""
    return _Dispatch.apply(x, weights, transport, plan)


def combine(rows: Tensor, transport: Transport, plan: Plan) -> Tensor:
    """Return results (R, H) to the ranks of their tokens, and sum them there: (T, H), differentiable."""
    return _Combine.apply(rows, transport, plan)


def settled(tensor: Tensor) -> Tensor:
    """A tensor that is in memory: the result of a functional collective, which may still be on its way, after it."""
    wait = getattr(tensor, "trigger_wait", None)
    return tensor if wait is None else wait()
