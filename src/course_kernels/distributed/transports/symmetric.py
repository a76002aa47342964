"""The way inside an NVLink domain: ranks write rows into the other ranks' memory. Nothing is read from there.

The host reads nothing, so a CUDA graph captures a layer. Each rank keeps ``max_tokens`` rows for each rank, which is an
upper bound: nothing is dropped. A token's row has the token's own number there, and no rank has to know another's plan.
Rows that no token fills have no choices here, and nothing reads them.

One buffer serves all. A use of it has four steps, and the device makes them in this order: a barrier of the group;
every rank writes to every rank's buffer; a second barrier; every rank reads its own buffer. Three things follow.

- A rank reads what all have written: the second barrier waits for every rank's writes.
- No rank overwrites what another still reads. A rank reads only between its second barrier and the first barrier of its
  next use, and no rank writes in that next use before all have reached its first barrier.
- A copy is needed only of what is read after the next use has begun. A backward reads tokens so late, and a user of
  ``dispatch`` may keep its rows for long. In ``motion.through`` a layer's products read tokens in the buffer itself.
  They are done before the next use, in which results come home: these overwrite the tokens, but not the weights behind
  them. So the sum that makes the results can still read the weights.

Where nearly every token goes to every rank (``copies``), copy engines bring all tokens of a rank to all others while
SMs multiply. Then a rank's rows have a signal of their own in place of the second barrier, which only choices and
weights wait for. The layer's first product begins with this rank's own tokens, and waits for the others' by itself
(``Pieces``). Copies and signals need no SM, so a kernel that has them all can wait.

Ranks need not agree on who copies out of the buffer, who sums while it pushes, or whose products wait: uses, barriers,
signals and places are the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_kernels.distributed.plan import Arrived, Homes, Plan, to_choices
from course_kernels.distributed.rows import total
from course_kernels.distributed.transports import peers as moving
from course_kernels.distributed.transports.agreement import check_agreement, check_same, form_of
from course_kernels.distributed.transports.peers import Peers
from course_kernels.distributed.transports.time_out import time_out
from course_kernels.distributed.transports.transport import Direct
from course_kernels.distributed.wire import Wire, settling
from course_kernels.engine.product import Pieces
from course_kernels.moe.form import Arriving
from course_kernels.moe.routing import Routing, route

# Where copy engines bring whole ranks' rows: the share of tokens that go to a rank, if their experts are drawn alike;
# and bytes of a rank's rows.
COPIED_SHARE, COPIED_BYTES = 0.9, 1 << 25
FLOP_PER_BYTE = 2600  # that a product computes while a byte arrives: 600 TFLOP/s and 350 GB/s, and half as much more
_CHANNEL = 1  # of signals; barriers have channel 0


class Region(NamedTuple):
    """A part of the buffers, for rows of one kind.

    Attributes:
        peers: of all ranks, for kernels.
        of_ranks: each rank's rows, (ranks * max_tokens, columns).
        rows: this rank's.
    """

    peers: Peers
    of_ranks: list[Tensor]
    rows: Tensor


class Symmetric(Direct):
    """A transport of a process group whose GPUs reach each other's memory.

    Args:
        group: of the ranks.
        num_local_experts: of each rank.
        max_tokens: most tokens of a rank in a call.
    """

    def __init__(self, group: dist.ProcessGroup, num_local_experts: int, max_tokens: int):
        self.group, self.num_local_experts, self.max_tokens = group, num_local_experts, max_tokens
        self.memories: list[Tensor] = []
        self._regions: dict[tuple, list[Region]] = {}

    @classmethod
    def of(cls, group: dist.ProcessGroup, num_local_experts: int, max_tokens: int | None) -> Symmetric:
        """The transport of a group of GPUs."""
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
            raise ValueError(f'max_tokens must be an int of at least 1 with "symmetric", got {max_tokens!r}')
        if "nccl" not in dist.get_backend(group):
            raise ValueError(
                f'transport must be "all_to_all" for a group of {dist.get_backend(group)}: "symmetric" is for GPUs'
            )
        return cls(group, num_local_experts, max_tokens)

    def copies(self, x: Tensor, top_k: int) -> bool:
        """Whether copy engines bring the rows of tokens x (T, H) with k choices: the same on all ranks."""
        ranks, local = self.group.size(), self.num_local_experts
        elsewhere = math.comb((ranks - 1) * local, top_k) / max(1, math.comb(ranks * local, top_k))
        size = self.max_tokens * x.shape[1] * x.element_size()
        return ranks > 1 and 1 - elsewhere >= COPIED_SHARE and size >= COPIED_BYTES

    def plan(self, top_k_index: Tensor) -> Plan:
        """Route tokens, and send the ids along."""
        homes = self._homes(top_k_index)
        (ids,) = self._open(top_k_index=homes.carriers)
        moving.tell(homes, self.num_local_experts, top_k_index, None, ids.peers, None)
        self._barrier()
        return self._planned(homes, ids.rows.clone())

    def scatter(self, x: Tensor, weights: Tensor | None, journey: Plan | Tensor) -> Arrived:
        """Send tokens (T, H), and weights (T, k): (ranks * max_tokens, H) and (ranks * max_tokens, k)."""
        (rows, weights, plan), arriving = self.arrive(x, weights, journey)
        if arriving is not None:
            arriving.settle()
        if plan is not journey:
            plan = plan._replace(local_index=plan.local_index.clone())
        return Arrived(rows.clone(), None if weights is None else weights.clone(), plan)

    def arrive(
        self, x: Tensor, weights: Tensor | None, journey: Plan | Tensor
    ) -> tuple[Arrived, Arriving | None]:  # fmt: skip
        """``scatter`` without copies: its rows, its weights, and a new plan's ids, are there until the next use. Ids to
        plan by travel in the same use. Rows that are copied may be arriving; all else is there."""
        planned = isinstance(journey, Plan)
        homes = journey.sends if planned else self._homes(journey)
        likes = dict(x=x, top_k_weights=weights, top_k_index=None if planned else homes.carriers)
        regions = self._open(**{name: each for name, each in likes.items() if each is not None})
        rows, sent = regions[0], None if weights is None else regions[1]
        ids = None if planned else regions[-1]
        top_k = homes.carriers.shape[1]
        copies = self.copies(x, top_k)
        if tells := not planned or weights is not None:
            given = None if planned else journey
            moving.tell(homes, self.num_local_experts, given, weights, ids and ids.peers, sent and sent.peers)
        if not copies:
            moving.put(x, homes, rows.peers)
        if tells or not copies:
            self._barrier()
        own, settle = self._copy(x, rows) if copies else (None, None)
        arriving = None
        with settling(settle):
            plan = journey if planned else self._planned(homes, ids.rows)
            if copies:
                own()
        if copies:
            arriving = Arriving(functools.partial(self._pieces, plan.routing, rows.peers, x, top_k), settle)
        return Arrived(rows.rows, None if sent is None else sent.rows, plan), arriving

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
        sums = None if rows is None else total(regions[0].rows, plan.sends, plan.tokens)
        return sums, None if values is None else to_choices(regions[-1].rows, plan.sends)

    # ---- steps

    def _homes(self, top_k_index: Tensor) -> Homes:
        tokens = top_k_index.shape[0]
        if tokens > self.max_tokens:
            raise ValueError(f"top_k_index must have at most max_tokens = {self.max_tokens} rows, got {tokens}")
        return moving.homes_of(top_k_index, self.num_local_experts, self.group.size(), self.max_tokens)

    def _copy(self, x: Tensor, region: Region) -> tuple[Callable[[], None], Callable[[], None]]:
        """Copy tokens to all ranks, and signal to each other one when it has them, on streams beside the current one.

        Returns:
            What makes the current stream wait for this rank's own tokens; and for all others': those that it gets and
            those that it sends. A second call of this takes no signal again.
        """
        x, wire, local = x.contiguous(), Wire(x.device), Wire(x.device, "own tokens")
        here, ranks, sent = self.group.rank(), self.group.size(), None
        begin = wire.mark()
        own = local.run(lambda: self._place(region, here, x.shape[0]).copy_(x), begin)
        for rank in ((here + step) % ranks for step in range(1, ranks)):

            def send(rank=rank):
                self._place(region, rank, x.shape[0]).copy_(x)
                self._signal(rank)

            sent = wire.run(send, begin)

        steps = iter(range(1, ranks))

        def settle(held=x):
            for step in steps:
                self._await(step)
            wire.wait(sent)

        return lambda: local.wait(own), settle

    def _pieces(self, routing: Routing, peers: Peers, x: Tensor, top_k: int, columns: int) -> Pieces:
        """The pieces for a product of so many columns. As few experts are divided as keep it busy while tokens arrive,
        because the weights of these are read once for each rank."""
        ranks, experts = self.group.size(), self.num_local_experts
        share = (ranks - 1) * x.element_size() * FLOP_PER_BYTE / max(1, 2 * top_k * columns)  # of the product's time
        divided = min(experts, math.ceil(experts * ranks * share))
        return moving.pieces_of(routing, peers, top_k, self.arrived, self._wait, divided)

    def _place(self, region: Region, rank: int, count: int) -> Tensor:
        """The first rows that a rank keeps for this one."""
        return region.of_ranks[rank][self.group.rank() * self.max_tokens :][:count]

    def _planned(self, homes: Homes, local_index: Tensor) -> Plan:
        """The plan, from the ids that have arrived."""
        tokens, top_k = homes.carriers.shape
        routing = route(local_index, self.num_local_experts, "auto")
        if self.num_local_experts < top_k:
            routing = routing.shortened(local_index.shape[0] * self.num_local_experts)
        return Plan(homes, None, local_index, routing, tokens)

    # ---- the memory

    def _open(self, **likes: Tensor) -> list[Region]:
        """Wait until no rank reads its memory any longer. Returns a region for rows like each of ``likes``, one behind
        the other. The first call for a size allocates; all ranks make it together."""
        form = tuple((each.dtype, each.shape[1]) for each in likes.values())
        if form not in self._regions:
            self._regions[form] = self._divide(likes)
        self._wait = self._milliseconds()
        self._barrier()
        return self._regions[form]

    @torch.inference_mode(False)  # who comes later may need gradients
    def _divide(self, likes: dict[str, Tensor]) -> list[Region]:
        """The regions for rows of such dtypes and widths, of memory that is allocated if there is too little."""
        capacity, ends = self.group.size() * self.max_tokens, [0]
        sizes = [capacity * like.shape[1] * like.element_size() for like in likes.values()]
        for size in sizes:
            ends.append(-(-(ends[-1] + size) // 16) * 16)
        device = next(iter(likes.values())).device
        if not self.memories or self.memories[0].numel() < ends[-1]:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("ExpertParallel: a graph cannot allocate: run the layer once before you capture it")
            self._agree(likes, device)
            self._regions.clear()
            self._allocate(ends[-1], device)
        regions, here = [], self.group.rank()
        for start, size, like in zip(ends, sizes, likes.values()):
            of_ranks = [
                each[start : start + size].view(like.dtype).reshape(capacity, like.shape[1]) for each in self.memories
            ]
            regions.append(Region(Peers(self.addresses, here, self.max_tokens, start), of_ranks, of_ranks[here]))
        return regions

    def _milliseconds(self) -> int:
        """How long to wait for other ranks: a little shorter than the group's time-out."""
        return int((time_out(self.group, self.memories[0].device) * 0.9).total_seconds() * 1000)

    def _barrier(self) -> None:
        """On the device: wait for all ranks."""
        self.handle.barrier(timeout_ms=self._wait)

    def _signal(self, rank: int) -> None:
        """On the device, without an SM: tell a rank that it has this rank's tokens."""
        step = (rank - self.group.rank()) % self.group.size()
        self.handle.stream_write_value32(self.signals[rank], step, 1)

    def _await(self, step: int) -> None:
        """On the device: wait for the signal of the rank that is so many before this one, and take it back."""
        self.handle.wait_signal(step, _CHANNEL, self._wait)

    def _agree(self, likes: dict[str, Tensor], device: torch.device) -> None:
        """Raise on all ranks unless they have the same numbers and are to send rows of the same dtype and width. Only
        where memory is allocated, since the host waits there in any case."""
        ranks, here = self.group.size(), self.group.rank()
        numbers = dict(num_experts=self.num_local_experts * ranks, max_tokens=self.max_tokens)
        told = [*numbers.values(), *map(form_of, likes.values())]
        mine = torch.tensor(told, dtype=torch.int64, device=device)
        found = mine.new_empty(ranks, mine.shape[0])
        dist.all_gather(list(found.unbind()), mine, group=self.group)
        by_rank = found.T.tolist()
        for name, values in zip(numbers, by_rank):
            check_same(name, values, here)
        for name, forms in zip(likes, by_rank[len(numbers) :]):
            check_agreement(name, forms, here)

    def _allocate(self, size: int, device: torch.device) -> None:
        import torch.distributed._symmetric_memory as symmetric_memory

        torch.cuda.synchronize(device)
        self._held = symmetric_memory.empty(size, dtype=torch.uint8, device=device)  # the others are views of it
        self.handle = symmetric_memory.rendezvous(self._held, self.group)
        self.memories = [
            self.handle.get_buffer(rank, (size,), torch.uint8) for rank in range(self.group.size())
        ]  # fmt: skip
        self.addresses = torch.tensor(self.handle.buffer_ptrs, dtype=torch.int64, device=device)
        # Of a rank's signals, the one with number n is of the rank n before it; torch numbers them by ranks.
        ranks = self.group.size()
        self.signals = [
            self.handle.get_signal_pad(rank, (ranks,), torch.uint32, ranks * _CHANNEL) for rank in range(ranks)
        ]  # fmt: skip
        self.arrived = self.signals[self.group.rank()].view(torch.int32)
