"""The way inside an NVLink domain: kernels put rows into, and fetch them from, the other ranks' memory.

The host reads nothing, so a CUDA graph captures a layer. Each rank keeps ``max_tokens`` rows for each source, which is
an upper bound: nothing is dropped. Rows that no token fills have no choices here, and nothing reads them.

One buffer serves all. Each use begins and ends with a barrier of the group on the device: the first waits until all
ranks have taken what was there before, the second until all have written.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_kernels.distributed.plan import Plan, of_choices, sends_of
from course_kernels.distributed.transports import peers as moving
from course_kernels.distributed.transports.peers import Peers
from course_kernels.distributed.transports.time_out import time_out
from course_kernels.moe import Routing


class Symmetric:
    """A transport of a process group whose GPUs reach each other's memory; see ``motion.Transport``.

    Args:
        group: of the ranks.
        num_local_experts: of each rank.
        max_tokens: most tokens of a rank in a call.
    """

    def __init__(self, group: dist.ProcessGroup, num_local_experts: int, max_tokens: int):
        self.group, self.num_local_experts, self.max_tokens = group, num_local_experts, max_tokens
        self.memory: Tensor | None = None

    def plan(self, top_k_index: Tensor) -> Plan:
        """Route tokens, and send the ids along."""
        tokens, top_k = top_k_index.shape
        if tokens > self.max_tokens:
            raise ValueError(f"top_k_index must have at most max_tokens = {self.max_tokens} rows, got {tokens}")
        sends = sends_of(top_k_index, self.num_local_experts, self.group.size())
        plan = Plan(sends, None, sends.local_index, sends.routing, tokens)
        local_index = self._put(sends.local_index, plan, by_token=False, fill=-1)
        routing = Routing.of(local_index, self.num_local_experts)
        most = local_index.shape[0] * min(top_k, self.num_local_experts) if self.num_local_experts < top_k else None
        return plan._replace(local_index=local_index, routing=routing if most is None else routing.shortened(most))

    def scatter(self, x: Tensor, plan: Plan) -> Tensor:
        """Send tokens (T, H) to their ranks: (ranks * max_tokens, H)."""
        return self._put(x, plan, by_token=True)

    def collect(self, rows: Tensor, plan: Plan) -> Tensor:
        """Return rows (ranks * max_tokens, H) to their tokens' ranks and sum each token's: (T, H)."""
        peers = self._offer(rows)
        out = torch.empty(plan.tokens, rows.shape[1], dtype=rows.dtype, device=rows.device)
        return moving.fetch_sum(out, plan.sends, peers)

    def scatter_weights(self, weights: Tensor, plan: Plan) -> Tensor:
        """Send float32 weights (T, k) along: (ranks * max_tokens, k), 0 for choices of other ranks."""
        return self._put(of_choices(weights, plan.sends), plan, by_token=False, fill=0)

    def collect_weights(self, values: Tensor, plan: Plan) -> Tensor:
        """Return float32 values (ranks * max_tokens, k) to their choices: (T, k)."""
        return moving.fetch(plan.sends, self._offer(values))

    def _put(self, x: Tensor, plan: Plan, *, by_token: bool, fill: int | None = None) -> Tensor:
        """Put rows of sends into their ranks' memory. Returns a copy of what the ranks have put here."""
        peers = self._open(x)
        moving.put(x, plan.sends, peers, by_token=by_token, fill=fill)
        self._barrier()
        return self._view(x).clone()

    def _offer(self, rows: Tensor) -> Peers:
        """Show rows to the other ranks."""
        peers = self._open(rows)
        self._view(rows).copy_(rows)
        self._barrier()
        return peers

    def _open(self, rows: Tensor) -> Peers:
        """Wait until no rank reads its memory any longer. The first call for a size of rows allocates; all ranks make
        it together."""
        capacity = self.group.size() * self.max_tokens
        size = capacity * rows.shape[1] * rows.element_size()
        if self.memory is None or self.memory.numel() < size:
            self._allocate(size, rows.device)
        self._barrier()
        return Peers(self.addresses, self.group.rank(), self.max_tokens)

    def _barrier(self) -> None:
        """On the device: wait for all ranks, a little shorter than the group's time-out."""
        patience = time_out(self.group, self.memory.device) * 0.9
        self.handle.barrier(timeout_ms=int(patience.total_seconds() * 1000))

    def _allocate(self, size: int, device: torch.device) -> None:
        import torch.distributed._symmetric_memory as symmetric_memory

        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("ExpertParallel: a graph cannot allocate: run the layer once before you capture it")
        torch.cuda.synchronize(device)
        self.memory = symmetric_memory.empty(size, dtype=torch.uint8, device=device)
        self.handle = symmetric_memory.rendezvous(self.memory, self.group)
        self.addresses = torch.tensor(self.handle.buffer_ptrs, dtype=torch.int64, device=device)

    def _view(self, like: Tensor) -> Tensor:
        """This rank's memory as rows like those given."""
        capacity = self.group.size() * self.max_tokens
        size = capacity * like.shape[1] * like.element_size()
        return self.memory[:size].view(like.dtype).reshape(capacity, like.shape[1])
