"""The methods that every transport has. ``dispatch`` and ``combine`` call no others."""

from __future__ import annotations

import abc
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from course_kernels.distributed.plan import Arrived, Plan
from course_kernels.moe.form import Arriving


class Transport(Protocol):
    """A way between ranks, on which rows travel to the ranks of their experts, and results back."""

    @classmethod
    def of(cls, group: dist.ProcessGroup, num_local_experts: int, max_tokens: int | None) -> Transport:
        """The transport of a process group; the other arguments as given to ``ExpertParallel``.

        Raises:
            ValueError: it is not for such a group, or such a ``max_tokens``.
        """
        ...

    def plan(self, top_k_index: Tensor) -> Plan:
        """Route tokens, and agree with all ranks on it."""
        ...

    def scatter(self, x: Tensor, weights: Tensor | None, journey: Plan | Tensor) -> Arrived:
        """Send tokens (T, H) to their ranks, and float32 weights (T, k) along, if given. The journey is a plan, or ids
        (T, k) to plan by; all ranks give the same one of both."""
        ...

    def collect(self, rows: Tensor | None, values: Tensor | None, plan: Plan) -> tuple[Tensor | None, Tensor | None]:
        """Return rows (R, H) to their tokens' ranks and sum each token's: (T, H). And float32 values (R, k) to their
        choices: (T, k). All ranks give both, or the same one of them."""
        ...


class Direct(Transport):
    """A transport between memories, which can sum on the way. Its plans have ``Homes``. A base, not a protocol, because
    each call asks for it, and ``isinstance`` of a protocol takes up to 20 µs."""

    @abc.abstractmethod
    def arrive(
        self, x: Tensor, weights: Tensor | None, journey: Plan | Tensor
    ) -> tuple[Arrived, Arriving | None]:  # fmt: skip
        """``scatter`` without copies: its rows, its weights, and a new plan's ids, are there until the next use. Rows
        may be arriving; all else is there."""
        ...

    @abc.abstractmethod
    def collect(
        self, rows: Tensor | None, values: Tensor | None, plan: Plan, of_experts: bool = False,
        weights: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
        """As above. With ``of_experts``, rows are those of experts: each token's are summed on the way, times the
        ``weights`` (R, k), if given."""
        ...
