"""The two halves of a journey, each the other's derivative."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_kernels.distributed.plan import Plan
from course_kernels.moe import Routing
from course_kernels.moe.parallel import Forward


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

    def plan(self, top_k_index: Tensor, x: Tensor | None = None) -> Plan:
        """Route tokens, and agree with all ranks on it; and on the form of x, where the host waits for them."""
        ...

    def scatter(self, x: Tensor, weights: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor | None]:
        """Send tokens (T, H) to their ranks: (R, H), the rows that have arrived here. And float32 weights (T, k) along,
        if given: (R, k), 0 for choices of other ranks."""
        ...

    def collect(self, rows: Tensor | None, values: Tensor | None, plan: Plan) -> tuple[Tensor | None, Tensor | None]:
        """Return rows (R, H) to their tokens' ranks and sum each token's: (T, H). And float32 values (R, k) to their
        choices: (T, k). All ranks give both, or the same one of them."""
        ...

    def through(self, forward: Forward, x: Tensor, weights: Tensor, plan: Plan) -> Tensor:
        """Send tokens (T, H) and weights, apply a layer where they arrive, and return its results as ``collect`` does.
        Without gradients."""
        ...


class _Dispatch(torch.autograd.Function):
    """x (T, H) and float32 weights (T, k) to their ranks. The gradient travels as ``combine`` does."""

    @staticmethod
    def forward(ctx, x, weights, transport: Transport, plan: Plan):
        ctx.transport, ctx.plan = transport, plan
        return transport.scatter(settled(x), settled(weights), plan)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_rows, grad_weights):
        needs_x, needs_weights, *_ = ctx.needs_input_grad
        rows, values = settled(grad_rows) if needs_x else None, settled(grad_weights) if needs_weights else None
        return *ctx.transport.collect(rows, values, ctx.plan), None, None


class _Combine(torch.autograd.Function):
    """Results (R, H) to the ranks of their tokens, and summed there. The gradient travels as ``dispatch`` does."""

    @staticmethod
    def forward(ctx, rows, transport: Transport, plan: Plan):
        ctx.transport, ctx.plan = transport, plan
        return transport.collect(settled(rows), None, plan)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return ctx.transport.scatter(settled(grad), None, ctx.plan)[0], None, None


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
