"""The plan of a dispatch: the ranks that each token is sent to, once each, and its experts at every rank.

A *send* is a token's journey to one rank, however many of its experts are there. Sends are in the order of their rank,
and of their token. Everything here is made on the device of the ids, and the host reads nothing:
by two kernels and a ``Routing`` on GPUs, by torch on CPUs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.moe import Routing
from course_kernels.moe.launching import launch

_ENTRIES = 512  # choices that a program has


class Sends(NamedTuple):
    """The sends of a rank's own tokens.

    Attributes:
        routing: of tokens to ranks, as ``moe.Routing`` has that of tokens to experts: its rows are sends. A token has
            min(k, ranks) places for ranks, filled in ascending order.
        carriers: int32 (T, k), the send that carries each choice; -1 for ids that are no expert.
        local_index: int32 (sends, k), the ids of each send's choices at its rank; -1 for choices of other ranks. Rows
            after the last send are -1.
        counts: int32 (ranks + 1, 2), the sends to each rank, and how many choices they carry; in the last line T and k.
    """

    routing: Routing
    carriers: Tensor
    local_index: Tensor
    counts: Tensor


class Homes(NamedTuple):
    """Where the results of a rank's own tokens come home, with "symmetric". Rank r's result for token t comes to row
    ``r * max_tokens + t`` of the token's rank, as token t came to row ``source * max_tokens + t`` of rank r.

    Attributes:
        rows: int32 (T, min(k, ranks)), for each token the rows of its ranks, ascending; then -1.
        carriers: int32 (T, k), the row of each choice; -1 for ids that are no expert.
    """

    rows: Tensor
    carriers: Tensor


class Plan(NamedTuple):
    """A routing over ranks that ``ExpertParallel.plan`` has made and all ranks have agreed on. ``dispatch`` takes it
    instead of ids, any number of times: a recomputation does not route tokens again.

    Attributes:
        sends: of this rank's tokens; with "symmetric" their homes.
        matrix: ``matrix[s][r]`` is how many tokens rank s sends to rank r; None where the host does not know.
        local_index: int32 (R, k), of the tokens that have arrived: their choices among this rank's experts, -1 for
            those of other ranks. Tokens of one source are in its order, sources in theirs.
        routing: of ``local_index`` to this rank's experts.
        tokens: of this rank.
        choices: of all tokens that arrive, those of this rank's experts; None where the host does not know.
    """

    sends: Sends | Homes
    matrix: tuple[tuple[int, ...], ...] | None
    local_index: Tensor
    routing: Routing
    tokens: int
    choices: int | None = None


class Arrived(NamedTuple):
    """The tokens that other ranks and this one have sent to this rank.

    Attributes:
        rows: (R, H), the tokens.
        weights: float32 (R, k), the weights of their choices, 0 for choices of other ranks; None if none were sent.
        plan: the routing by which they were sent.
    """

    rows: Tensor
    weights: Tensor | None
    plan: Plan


def sends_of(top_k_index: Tensor, num_local_experts: int, ranks: int, backend: str = "auto") -> Sends:
    """Find the sends of tokens.

    Args:
        top_k_index: int32 or int64 (T, k), ids of all ranks' experts. Rank r has those from r * num_local_experts on.
            Ids outside of all ranks' are none.
        num_local_experts: of each rank.
        ranks: how many.
        backend: as for ``Routing.of``.
    """
    tokens, top_k = top_k_index.shape
    device, places = top_k_index.device, min(top_k, ranks)
    if _in_torch(top_k_index, backend):
        return _sends_by_torch(top_k_index, num_local_experts, ranks)
    runtime.check_can_launch(device)
    block_k = 1 << (top_k - 1).bit_length()
    block = max(1, _ENTRIES // block_k)
    blocks = -(-tokens // block)
    table = torch.empty(tokens, places, dtype=torch.int32, device=device)
    parts = torch.empty(blocks, ranks, dtype=torch.int32, device=device)
    stride_t, stride_k = top_k_index.stride()
    common = dict(
        ids_ptr=top_k_index, ranks_ptr=table, parts_ptr=parts, stride_t=stride_t, stride_k=stride_k, TOP_K=top_k,
        LOCAL=num_local_experts, RANKS=ranks, PLACES=places, BLOCK=block, BLOCK_K=block_k, BLOCK_R=8,
    )  # fmt: skip
    launch("moe_sends", "ranks_kernel", blocks, tokens, **common)
    routing = Routing.of(table, ranks, backend=backend)
    carriers = torch.empty(tokens, top_k, dtype=torch.int32, device=device)
    local_index = torch.empty(tokens * places, top_k, dtype=torch.int32, device=device)
    counts = torch.empty(ranks + 1, 2, dtype=torch.int32, device=device)
    launch(
        "moe_sends", "sends_kernel", -(-tokens * places // block), tokens, **common, offs_ptr=routing.ends,
        slots_ptr=routing.choices, positions_ptr=routing.rows, local_ptr=local_index, carriers_ptr=carriers,
        counts_ptr=counts,
    )  # fmt: skip
    return Sends(routing, carriers, local_index, counts)


def of_choices(weights: Tensor, sends: Sends, backend: str = "auto") -> Tensor:
    """Lay out the float32 weights (T, k) of choices for their sends: (sends, k), 0 for choices of other ranks."""
    return _picked(weights, sends.local_index, sends.routing.tokens, backend)


def to_choices(values: Tensor, sends: Sends | Homes, backend: str = "auto") -> Tensor:
    """Return float32 values (rows, k) of sends, or of homes, to the choices (T, k) that they belong to; 0 for ids that
    are no expert. Values of a row's other choices are not read."""
    return _picked(values, sends.carriers, None, backend)


def _in_torch(tensor: Tensor, backend: str) -> bool:
    """Whether torch computes it: as asked for, on a CPU, or because there is nothing to launch."""
    return backend == "torch" or (backend == "auto" and tensor.device.type == "cpu") or not tensor.numel()


def _picked(values: Tensor, marks: Tensor, rows: Tensor | None, backend: str) -> Tensor:
    """Pick column j of a row of values (any, k) where marks (n, k) are no less than 0, else 0: the row that ``rows``
    (n,) has, or without these the mark."""
    count, top_k = marks.shape
    if not (marks.numel() and values.numel()):
        return values.new_zeros(marks.shape)
    if _in_torch(marks, backend):
        row = marks.clamp(min=0) if rows is None else rows[:count, None]
        column = torch.arange(top_k, dtype=torch.int64, device=marks.device)
        return torch.where(marks >= 0, values[row.long(), column], 0.0)
    out = torch.empty(count, top_k, dtype=torch.float32, device=marks.device)
    stride_t, stride_k = values.stride()
    launch(
        "moe_sends", "pick_kernel", -(-out.numel() // _ENTRIES), count, values_ptr=values, marks_ptr=marks,
        rows_ptr=rows, out_ptr=out, stride_t=stride_t, stride_k=stride_k, TOP_K=top_k, BLOCK=_ENTRIES,
    )  # fmt: skip
    return out


def _sends_by_torch(top_k_index: Tensor, num_local_experts: int, ranks: int) -> Sends:
    (tokens, top_k), device = top_k_index.shape, top_k_index.device
    places, ids = min(top_k, ranks), top_k_index.long()
    rank = torch.where((ids >= 0) & (ids < ranks * num_local_experts), ids // num_local_experts, ranks)
    every = torch.arange(ranks, dtype=torch.int64, device=device)
    carried = (rank[:, :, None] == every).sum(1)  # (T, ranks)
    order = torch.where(carried > 0, every, ranks).sort(1).values[:, :places]
    table = torch.where(order < ranks, order, -1)
    routing = Routing.of(table, ranks, backend="torch")
    send_of_rank = torch.full((tokens, ranks + 1), -1, dtype=torch.int32, device=device)
    send_of_rank.scatter_(1, order, routing.rows)
    goal, of_token = table.reshape(-1)[routing.choices.long()][:, None], routing.tokens.long()
    local = torch.where(rank[of_token] == goal, ids[of_token] - goal * num_local_experts, -1)
    counts = torch.full((ranks + 1, 2), top_k, dtype=torch.int32, device=device)
    counts[:ranks, 0], counts[:ranks, 1], counts[ranks, 0] = (carried > 0).sum(0), carried.sum(0), tokens
    return Sends(routing, send_of_rank.gather(1, rank), local.int(), counts)
