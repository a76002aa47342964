"""A token dispatcher with the methods of torchtitan's, on ``ExpertParallel``. It imports nothing of torchtitan."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from course_kernels.distributed import Choices, ExpertParallel, Plan, rows
from course_kernels.moe import Routing


class Metadata(NamedTuple):
    """What ``TokenDispatcher.combine`` needs: the plan, and the choices that have arrived."""

    handle: Plan
    choices: Choices


class TokenDispatcher:
    """Tokens travel once to each rank that has experts of them; there they are copied for each expert, as torchtitan's
    ``GroupedExperts`` wants them. ``moe_feed_forward(..., ep=...)`` needs no copies.

    Args:
        num_experts: of all ranks.
    """

    def __init__(self, num_experts: int):
        self.num_experts = num_experts
        self.ep: ExpertParallel | None = None

    def wire_meshes(self, *, ep_mesh: DeviceMesh) -> None:
        """Spread the experts over a 1-D mesh; collective."""
        self.ep = ExpertParallel(ep_mesh, self.num_experts)

    def init_buffer(self) -> None:
        """Nothing: buffers are allocated by each call."""

    def dispatch(
        self, x: Tensor, topk_scores: Tensor, topk_expert_ids: Tensor, num_local_tokens_per_expert: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Metadata]:
        """Send tokens (T, D) with scores and ids (T, K).

        Returns:
            The rows of this rank's experts, in the order of experts; how many each has, int64 on the device; and the
            metadata for ``combine``. ``num_local_tokens_per_expert`` is not read.
        """
        if self.ep is None:
            raise RuntimeError("wire_meshes must be called before dispatch: the dispatcher has no group yet")
        arrived, choices, handle = self.ep.dispatch(x, topk_expert_ids, topk_scores)
        ends = choices.routing.ends.long()
        count = choices.routing.tokens.shape[0] if handle.choices is None else handle.choices
        routed = _Spread.apply(arrived, choices.routing, count)
        return routed, ends.diff(prepend=ends.new_zeros(1)), Metadata(handle, choices)

    def combine(self, routed_output: Tensor, metadata: Metadata, x: Tensor | None = None) -> Tensor:
        """Weight rows with their scores in float32, and return each token's sum to its rank: (T, D). ``x`` is not
        read."""
        choices = metadata.choices
        scores = choices.weights.reshape(-1)[choices.routing.choices[: routed_output.shape[0]].long()]
        weighted = routed_output.float() * scores[:, None]
        sums = _Total.apply(weighted, choices.routing, choices.weights.shape[0])
        return self.ep.combine(sums.to(routed_output.dtype), metadata.handle)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, arrived: Tensor, routing: Routing, count: int):
        ctx.routing, ctx.tokens = routing, arrived.shape[0]
        return rows.spread(arrived, routing, count)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return rows.total(grad, ctx.routing, ctx.tokens), None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, results: Tensor, routing: Routing, tokens: int):
        ctx.routing, ctx.count = routing, results.shape[0]
        return rows.total(results, routing, tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return rows.spread(grad.contiguous(), ctx.routing, ctx.count), None, None
