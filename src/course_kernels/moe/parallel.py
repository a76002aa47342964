"""What the layer asks of expert parallelism, which is built on top of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from course_kernels.contexts import has_overrides, is_intercepted
from course_kernels.engine.plans import PlanCache
from course_kernels.moe.form import Form, Operands
from course_kernels.moe.routing import Routing

Layer = Callable[[Tensor, Tensor, Routing], Tensor]
"""A rank's part of the layer: rows (R, H), weights (R, k) and their routing to (R, H)."""


class Kernels(NamedTuple):
    """The same layer where kernels compute all of it, so that a transport may take its last step: the sum of a token's
    rows.

    Attributes:
        operands: with this rank's tokens, and their weights as given.
        form: of the layer.
        float8: a ``fp8_layer.Float8``, where nobody asks for gradients; or None.
        main_grads: as for ``moe_feed_forward``.
    """

    operands: Operands
    form: Form
    float8: Any = None
    main_grads: Sequence[Tensor | None] | None = None


class Parallel(Protocol):
    """Experts that are spread over ranks: ``course_kernels.distributed.ExpertParallel``.

    Attributes:
        num_experts: of all ranks.
        num_local_experts: of each rank.
        rank: this process's. It has the experts from ``rank * num_local_experts`` on.
        plans: of calls, as in ``moe.layer_plan``; what they hold is released with the ranks.
    """

    num_experts: int
    num_local_experts: int
    rank: int
    plans: PlanCache

    def local(self, **weights: Tensor | None) -> list[Tensor | None]:
        """This rank's part of weights."""
        ...

    def of_all(self, weight: Tensor) -> Tensor:
        """The weights of all ranks, of which this rank has the part ``weight``."""
        ...

    def products_sms(self, device: torch.device, num_sms: int | None) -> int | None:
        """The SMs that products may use; None for all."""
        ...

    def feed_forward(
        self, layer: Layer, x: Tensor, top_k_index: Tensor | None, top_k_weights: Tensor, *, plan: Any = None,
        kernels: Kernels | None = None,
    ) -> Tensor:  # fmt: skip
        """Send tokens to the ranks of their experts, apply the layer there, and sum the results here."""
        ...

    def plan_calls(self, kernels: Kernels) -> Any:
        """A plan of calls of ``feed_forward`` like one that was made, without its checks; None where there is none."""
        ...


def check_parallel(ep) -> None:
    """Raise unless ``ep`` is a ``Parallel`` or None. Its members tell: its class would import ``torch.distributed``."""
    if ep is None or (hasattr(ep, "num_experts") and hasattr(ep, "feed_forward")):
        return
    kind = type(ep).__name__
    hint = f": pass ExpertParallel of that {kind}" if kind in ("DeviceMesh", "ProcessGroup") else ""
    raise TypeError(f"ep must be an ExpertParallel or None, got {kind}{hint}")


def on_this_rank(operands: Operands, ep) -> tuple[Operands, PlanCache | None]:
    """The operands with this rank's part of weights, and the plans of calls with these experts. None, and nothing is
    done, where the checks of a call without a plan are to say what is wrong, or a mode has to see the call."""
    plans = getattr(ep, "plans", None)
    if type(plans) is not PlanCache or is_intercepted() or has_overrides(*operands):
        return operands, None
    _, gate_up, down, _, gate_up_bias, down_bias = operands
    gate_up, down, gate_up_bias, down_bias = ep.local(
        gate_up=gate_up, down=down, gate_up_bias=gate_up_bias, down_bias=down_bias
    )
    return Operands(operands.x, gate_up, down, operands.weights, gate_up_bias, down_bias), plans
