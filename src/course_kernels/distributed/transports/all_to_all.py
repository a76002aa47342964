"""The way over ``all_to_all_single``: any cluster that ``torch.distributed`` spans, with one read of the splits."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_kernels.distributed import rows as moving
from course_kernels.distributed.plan import Arrived, Plan, Sends, of_choices, sends_of, to_choices
from course_kernels.distributed.transports.agreement import check_agreement, check_same, form_of
from course_kernels.distributed.transports.time_out import time_out
from course_kernels.moe import Routing

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name up to torch 2.12


class AllToAll(NamedTuple):
    """A transport of a process group; see ``transport.Transport``.

    Attributes:
        group: of the ranks.
        num_local_experts: of each rank.
    """

    group: dist.ProcessGroup
    num_local_experts: int

    @classmethod
    def of(cls, group: dist.ProcessGroup, num_local_experts: int, max_tokens: int | None) -> AllToAll:
        """The transport of a group; without ``max_tokens``, because it allocates for the tokens there are."""
        if max_tokens is not None:
            raise ValueError(f'max_tokens must be None with "all_to_all", got {max_tokens!r}')
        return cls(group, num_local_experts)

    def plan(self, top_k_index: Tensor, x: Tensor | None = None) -> Plan:
        """Route tokens, tell all ranks how many go where, and send the ids along. The host reads once, and with it the
        form of x and the number of experts."""
        ranks, here = self.group.size(), self.group.rank()
        sends = sends_of(top_k_index, self.num_local_experts, ranks)
        about = sends.counts.new_full((1, 2), form_of(x))
        about[:, 1] = self.num_local_experts
        table = self._gather(torch.cat([sends.counts, about])).tolist()
        check_same("num_experts", [lines[-1][1] * ranks for lines in table], here)
        widths = {rank: lines[ranks][1] for rank, lines in enumerate(table)}
        if len(set(widths.values())) > 1:
            raise ValueError(f"top_k_index must have as many columns k on all ranks, got {widths} by rank")
        check_agreement("x", [lines[-1][0] for lines in table], here)
        matrix = tuple(tuple(line[0] for line in lines[:ranks]) for lines in table)
        count = sum(matrix[here])
        sends = sends._replace(routing=sends.routing.shortened(count), local_index=sends.local_index[:count])
        plan = Plan(sends, matrix, sends.local_index, sends.routing, top_k_index.shape[0])
        local_index = self._send(sends.local_index, plan, "the ids of choices")
        routing = Routing.of(local_index, self.num_local_experts)
        choices = sum(lines[here][1] for lines in table)
        return plan._replace(local_index=local_index, routing=routing.shortened(choices), choices=choices)

    def scatter(self, x: Tensor, weights: Tensor | None, journey: Plan | Tensor) -> Arrived:
        """Send tokens (T, H) to their ranks, and weights (T, k): (R, H) and (R, k)."""
        plan = journey if isinstance(journey, Plan) else self.plan(journey, x)
        rows = self._send(moving.spread(x, plan.sends.routing, _sent(plan.sends)), plan, "tokens")
        weights = None if weights is None else self._send(of_choices(weights, plan.sends), plan, "weights")
        return Arrived(rows, weights, plan)

    def collect(
        self, rows: Tensor | None, values: Tensor | None, plan: Plan
    ) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
        """Return rows (R, H), summed: (T, H); and values (R, k) to their choices: (T, k)."""
        if rows is not None:
            returned = self._send(rows, plan, "results", back=True)
            rows = moving.total(returned, plan.sends.routing, plan.tokens)
        if values is not None:
            values = to_choices(self._send(values, plan, "gradients of weights", back=True), plan.sends)
        return rows, values

    def _send(self, rows: Tensor, plan: Plan, what: str, back: bool = False) -> Tensor:
        """Exchange rows that are in the order of ranks; ``back`` the way they came."""
        here = self.group.rank()
        away, home = list(plan.matrix[here]), [line[here] for line in plan.matrix]
        sizes, arriving = (home, away) if back else (away, home)
        out = rows.new_empty(sum(arriving), *rows.shape[1:])
        with self._context(what):
            dist.all_to_all_single(out, rows.contiguous(), arriving, sizes, group=self.group)
        return out

    def _gather(self, mine: Tensor) -> Tensor:
        """The counts of all ranks, on the host: (ranks, ...)."""
        ranks = self.group.size()
        out = mine.new_full((ranks * mine.shape[0], *mine.shape[1:]), -1)  # what no count is
        with self._context("the counts of tokens"):
            work = _all_gather(out, mine, group=self.group, async_op=True)
            # NCCL's plain wait blocks the stream alone, and its watchdog ends the process. The host reads the counts
            # next, so it may as well wait here, a little shorter than the watchdog, and say what for.
            work.wait(time_out(self.group, mine.device) * 0.9)
            found = out.reshape(ranks, *mine.shape).cpu()
            # A wait that another thread has ended returns as if all had arrived.
            if missing := [rank for rank, counts in enumerate(found) if (counts < 0).any()]:
                raise RuntimeError(f"nothing arrived from ranks {missing}")
            return found

    @contextlib.contextmanager
    def _context(self, what: str):
        try:
            yield
        except RuntimeError as error:
            reason = str(error).rstrip(".!")
            raise RuntimeError(
                f"ExpertParallel: rank {self.group.rank()} of {self.group.size()} could not exchange {what}: {reason}. "
                "Every rank of the group has to make the same calls in the same order, a rank without tokens and its "
                "backward as well, for gradients of the same ones of x and weights, and with as many chunks. A rank "
                "that raised an error before its call, or has ended, makes none: look at the others' output."
            ) from error


def _sent(sends: Sends) -> int:
    return sends.local_index.shape[0]
