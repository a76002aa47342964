"""The two halves of a journey, each the other's derivative; and the whole of it, between memories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_kernels.contexts import wants_grad
from course_kernels.distributed.plan import Arrived, Plan
from course_kernels.distributed.transports.transport import Direct, Transport
from course_kernels.distributed.wire import settling
from course_kernels.moe import Routing, fp8_layer, layer
from course_kernels.moe.form import Arriving, Operands
from course_kernels.moe.layer_plan import LayerPlan
from course_kernels.moe.parallel import Kernels
from course_kernels.moe.steps import uncombined
from course_kernels.moe.torch_ops import collected, prepared, refuse_second_derivatives


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


class _Dispatch(torch.autograd.Function):
    """x (T, H) and float32 weights (T, k) to their ranks. The gradient travels as ``combine`` does."""

    @staticmethod
    def forward(ctx, x, weights, transport: Transport, journey: Plan | Tensor):
        arrived = transport.scatter(settled(x), settled(weights), journey)
        ctx.transport, ctx.plan = transport, arrived.plan
        return tuple(arrived)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_rows, grad_weights, _):
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
        return ctx.transport.scatter(settled(grad), None, ctx.plan).rows, None, None


def dispatch(x: Tensor, weights: Tensor, transport: Transport, journey: Plan | Tensor) -> Arrived:
    """Send x (T, H) and float32 weights (T, k) to their ranks, differentiable, by a plan or ids."""
    return Arrived(*_Dispatch.apply(x, weights, transport, journey))


def combine(rows: Tensor, transport: Transport, plan: Plan) -> Tensor:
    """Return results (R, H) to the ranks of their tokens, and sum them there: (T, H), differentiable."""
    return _Combine.apply(rows, transport, plan)


class _Through(torch.autograd.Function):
    """There, through the layer, and back. It uses the ranks' memory as often, and for the same, as ``dispatch`` and
    ``combine`` and their backwards do: each rank may take either way."""

    @staticmethod
    def forward(ctx, x, gate_up, down, weights, gate_up_bias, down_bias, kernels, transport, journey, experts):
        (rows, sent, plan), arriving = transport.arrive(x, weights, journey)
        operands = kernels.operands._replace(x=rows, weights=sent)
        with settling(arriving and arriving.settle):
            results, pre = experts(operands, plan.routing, arriving)
        sent = sent.clone()
        ctx.save_for_backward(*operands._replace(x=rows.clone(), weights=sent), pre)
        ctx.form, ctx.main_grads, ctx.transport, ctx.plan = kernels.form, kernels.main_grads, transport, plan
        return transport.collect(results, None, plan, True, None if kernels.form.on_input else sent)[0]

    @staticmethod
    def backward(ctx, grad):
        refuse_second_derivatives()
        *tensors, pre = ctx.saved_tensors  # first: where a checkpoint computes them anew, it uses the memory, too
        operands, needs = Operands(*tensors), collected(ctx)
        (rows, *_), arriving = ctx.transport.arrive(prepared(settled(grad), operands), None, ctx.plan)
        with settling(arriving and arriving.settle):
            found = layer.backward(
                rows, operands, pre, ctx.plan.routing, ctx.form, tuple(needs[0]), needs[1], combine=uncombined,
                arriving=arriving,
            )  # fmt: skip
        of_input = operands.weights if ctx.form.on_input else None
        x, weights = ctx.transport.collect(found.x, found.weights, ctx.plan, True, of_input)
        return *found._replace(x=x, weights=weights), None, None, None, None


Rows: TypeAlias = Callable[[Operands, Routing, Arriving | None], tuple[Tensor, Tensor | None]]
"""A function that computes the experts' results, a row for each choice, and the activation's argument. Its tokens may
still be arriving."""


def through(kernels: Kernels, transport: Direct, journey: Plan | Tensor, experts: Rows | None = None) -> Tensor:
    """Send tokens to their ranks, apply the layer there, and return the results: (T, H), differentiable. The layer's
    last step, and its backward's, sums rows of experts straight into the memory of the tokens' ranks. ``experts``: None
    finds the products anew."""
    operands, keep = kernels.operands, wants_grad(*kernels.operands)
    weights, experts = operands.weights.float(), experts or _rows_of(kernels, keep)
    if keep:
        return _Through.apply(*operands._replace(weights=weights), kernels, transport, journey, experts)
    (rows, sent, plan), arriving = transport.arrive(operands.x, weights, journey)
    with settling(arriving and arriving.settle):
        results, _ = experts(operands._replace(x=rows, weights=sent), plan.routing, arriving)
    return transport.collect(results, None, plan, True, None if kernels.form.on_input else sent)[0]


def _rows_of(kernels: Kernels, keep: bool) -> Rows:
    """The way of a layer without a plan."""
    _, form, float8, _ = kernels

    def rows(operands: Operands, routing: Routing, arriving: Arriving | None) -> tuple[Tensor, Tensor | None]:
        if float8 is None:
            return layer.forward(operands, routing, form, keep=keep, combine=uncombined, arriving=arriving)
        if arriving is not None:
            arriving.settle()
        return fp8_layer.forward(operands, float8, routing, form, keep=keep, combine=uncombined)

    return rows


class ThroughPlan:
    """A call of ``through`` for arguments of one key, whose checks an earlier call has passed. It serves as a plan; see
    ``moe.layer_plan``.

    Args:
        kernels: of that call.
        transport: between the ranks.
    """

    keep = False  # ``through`` does, if it has to

    def __init__(self, kernels: Kernels, transport: Direct):
        self._keeps = wants_grad(*kernels.operands)
        self._kernels, self._transport = kernels._replace(operands=None), transport
        self._experts: Rows | None = None

    def prepare(self, operands: Operands, ids: Tensor) -> tuple[Operands, Tensor]:
        """Return what ``forward`` takes: ids travel to the ranks that sort them."""
        return operands, ids

    def forward(self, operands: Operands, ids: Tensor, scales: Any) -> tuple[Tensor, None]:
        """Compute the result (T, H)."""
        return through(self._kernels._replace(operands=operands), self._transport, ids, self._rows), None

    def _rows(self, operands: Operands, routing: Routing, arriving: Arriving | None) -> tuple[Tensor, Tensor | None]:
        if self._experts is None:
            form, rows = self._kernels.form, routing.tokens.shape[0]
            self._experts = _rows_of(self._kernels, self._keeps)
            if layer.is_fused(operands, form, rows, self._keeps):
                self._experts = LayerPlan(operands, routing.rows, form, self._keeps, rows).products
        return self._experts(operands, routing, arriving)


def settled(tensor: Tensor) -> Tensor:
    """A tensor that is in memory: the result of a functional collective, which may still be on its way, after it."""
    wait = getattr(tensor, "trigger_wait", None)
    return tensor if wait is None else wait()
