"""The way inside an NVLink domain: kernels write rows into the other ranks' memory. Nothing is read from there.

The host reads nothing, so a CUDA graph captures a layer. Each rank keeps ``max_tokens`` rows for each rank, which is an
upper bound: nothing is dropped. Rows that no token fills have no choices here, and nothing reads them.

One buffer serves all. A use of it has four steps, and the device makes them in this order: a barrier of the group;
every rank writes to every rank's buffer; a second barrier; every rank reads its own buffer. Three things follow.

- A rank reads what all have written: the second barrier waits for every rank's writes.
- No rank overwrites what another still reads. A rank reads only between its second barrier and the first barrier of its
  next use, and no rank writes in that next use before all have reached its first barrier.
- A copy is needed only of what is read after the next use has begun. A backward reads tokens so late, and a user of
  ``dispatch`` may keep its rows for long. In ``motion.through`` a layer's products read tokens in the buffer itself.
  They are done before the next use, in which results come home: these overwrite the tokens, but not the weights behind
  them. So the sum that makes the results can still read the weights.

Ranks need not agree on who copies, or on who sums while it pushes: uses, barriers and places are the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_kernels.distributed.plan import Arrived, Plan, Sends, of_choices, sends_of, to_choices
from course_kernels.distributed.rows import total
from course_kernels.distributed.transports import peers as moving
from course_kernels.distributed.transports.agreement import check_agreement, form_of
from course_kernels.distributed.transports.peers import Peers
from course_kernels.distributed.transports.time_out import time_out
from course_kernels.moe import Routing


class Region(NamedTuple):
    """A part of the buffers, for rows of one kind.

    Attributes:
        peers: of all ranks, for kernels.
        rows: of this rank, (ranks * max_tokens, columns).
    """

    peers: Peers
    rows: Tensor


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
        sends = self._sends(top_k_index)
        (ids,) = self._open(top_k_index=sends.local_index)
        moving.put(sends.local_index, sends, ids.peers, by_token=False, fill=-1)
        self._barrier()
        return self._planned(sends, ids)

    def scatter(self, x: Tensor, weights: Tensor | None, journey: Plan | Tensor) -> Arrived:
        """Send tokens (T, H), and weights (T, k): (ranks * max_tokens, H) and (ranks * max_tokens, k)."""
        rows, weights, plan = self.arrive(x, weights, journey)
        return Arrived(rows.clone(), None if weights is None else weights.clone(), plan)

    def arrive(self, x: Tensor, weights: Tensor | None, journey: Plan | Tensor) -> Arrived:
        """``scatter`` without copies: its rows and weights are there until the next use. Ids to plan by travel in the
        same use."""
        planned = isinstance(journey, Plan)
        sends = journey.sends if planned else self._sends(journey)
        likes = dict(x=x, top_k_weights=weights, top_k_index=None if planned else sends.local_index)
        regions = self._open(**{name: each for name, each in likes.items() if each is not None})
        rows, sent = regions[0], None if weights is None else regions[1]
        if not planned:
            moving.put(sends.local_index, sends, regions[-1].peers, by_token=False, fill=-1)
        if weights is not None:  # 0 for choices of other ranks, and in rows that no token fills
            moving.put(of_choices(weights, sends), sends, sent.peers, by_token=False, fill=0)
        moving.put(x, sends, rows.peers, by_token=True)
        self._barrier()
        plan = journey if planned else self._planned(sends, regions[-1])
        return Arrived(rows.rows, None if sent is None else sent.rows, plan)

    def collect(
        self, rows: Tensor | None, values: Tensor | None, plan: Plan, of_experts: bool = False,
        weights: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
        """Return rows (ranks * max_tokens, H), summed: (T, H); and values (ranks * max_tokens, k): (T, k). With
        ``of_experts``, rows are those of experts, which are summed on the way as ``steps.combine`` does with
        ``weights``."""
        given = {name: each for name, each in (("x", rows), ("top_k_weights", values)) if each is not None}
        if not given:
            return None, None
        regions = self._open(**given)
        if rows is not None:
            moving.push(rows, plan.routing, regions[0].peers, of_experts=of_experts, weights=weights)
        if values is not None:
            moving.push(values, plan.routing, regions[-1].peers)
        self._barrier()
        sums = None if rows is None else total(regions[0].rows, plan.sends.routing, plan.tokens)
        return sums, None if values is None else to_choices(regions[-1].rows, plan.sends)

    def _sends(self, top_k_index: Tensor) -> Sends:
        tokens = top_k_index.shape[0]
        if tokens > self.max_tokens:
            raise ValueError(f"top_k_index must have at most max_tokens = {self.max_tokens} rows, got {tokens}")
        return sends_of(top_k_index, self.num_local_experts, self.group.size())

    def _planned(self, sends: Sends, ids: Region) -> Plan:
        """The plan, from the ids that have arrived."""
        (tokens, top_k), local_index = sends.carriers.shape, ids.rows.clone()
        routing = Routing.of(local_index, self.num_local_experts)
        if self.num_local_experts < top_k:
            routing = routing.shortened(local_index.shape[0] * self.num_local_experts)
        return Plan(moving.returning(sends, self.max_tokens), None, local_index, routing, tokens)

    def _open(self, **likes: Tensor) -> list[Region]:
        """Wait until no rank reads its memory any longer. Returns a region for rows like each of ``likes``, one behind
        the other. The first call for a size allocates; all ranks make it together."""
        capacity, ends = self.group.size() * self.max_tokens, [0]
        for like in likes.values():
            size = capacity * like.shape[1] * like.element_size()
            ends.append(-(-(ends[-1] + size) // 16) * 16)
        device = next(iter(likes.values())).device
        if self.memory is None or self.memory.numel() < ends[-1]:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("ExpertParallel: a graph cannot allocate: run the layer once before you capture it")
            self._agree(likes, device)
            self._allocate(ends[-1], device)
        self._barrier()
        regions = []
        for start, like in zip(ends, likes.values()):
            size = capacity * like.shape[1] * like.element_size()
            rows = self.memory[start : start + size].view(like.dtype).reshape(capacity, like.shape[1])
            regions.append(Region(Peers(self.addresses, self.group.rank(), self.max_tokens, start), rows))
        return regions

    def _barrier(self) -> None:
        """On the device: wait for all ranks, a little shorter than the group's time-out."""
        patience = time_out(self.group, self.memory.device) * 0.9
        self.handle.barrier(timeout_ms=int(patience.total_seconds() * 1000))

    def _agree(self, likes: dict[str, Tensor], device: torch.device) -> None:
        """Raise on all ranks unless they are to send rows of the same dtype and width. Only where memory is allocated,
        since the host waits there in any case."""
        mine = torch.tensor([form_of(each) for each in likes.values()], dtype=torch.int64, device=device)
        found = mine.new_empty(self.group.size(), mine.shape[0])
        dist.all_gather(list(found.unbind()), mine, group=self.group)
        for name, forms in zip(likes, found.T.tolist()):
            check_agreement(name, forms, self.group.rank())

    def _allocate(self, size: int, device: torch.device) -> None:
        import torch.distributed._symmetric_memory as symmetric_memory

        torch.cuda.synchronize(device)
        self.memory = symmetric_memory.empty(size, dtype=torch.uint8, device=device)
        self.handle = symmetric_memory.rendezvous(self.memory, self.group)
        self.addresses = torch.tensor(self.handle.buffer_ptrs, dtype=torch.int64, device=device)
