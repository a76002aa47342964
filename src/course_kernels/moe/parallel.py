"""What the layer asks of expert parallelism, which is built on top of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from course_kernels.moe.routing import Routing

Layer = Callable[[Tensor, Tensor, Routing], Tensor]
"""A rank's part of the layer: rows (R, H), weights (R, k) and their routing to (R, H)."""

Combine = Callable[[Tensor, Routing, int, Tensor | None], Tensor]
"""A layer's last step, such as ``steps.combine``: rows of experts, routing, number of tokens, and weights or None."""

Forward = Callable[[Tensor, Tensor, Routing, Combine], Tensor]
"""A rank's part of the layer without gradients, and with any last step, whose result it returns."""


class Parallel(Protocol):
    """Experts that are spread over ranks: ``course_kernels.distributed.ExpertParallel``.

    Attributes:
        num_experts: of all ranks.
        num_local_experts: of each rank.
    """

    num_experts: int
    num_local_experts: int

    def local(self, **weights: Tensor | None) -> list[Tensor | None]:
        """This rank's part of weights."""
        ...

    def products_sms(self, device: torch.device, num_sms: int | None) -> int | None:
        """The SMs that products may use; None for all."""
        ...

    def feed_forward(
        self, layer: Layer, x: Tensor, top_k_index: Tensor | None, top_k_weights: Tensor, *, plan: Any = None,
        forward: Forward | None = None,
    ) -> Tensor:  # fmt: skip
        """Send tokens to the ranks of their experts, apply the layer there, and sum the results here. ``forward`` is
        the same layer, where nobody asks for gradients and it can have another last step."""
        ...
