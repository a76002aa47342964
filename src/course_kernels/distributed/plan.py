"""The plan of a dispatch: the ranks that each token is sent to, once each, and its experts at every rank.

A *send* is a token's journey to one rank, however many of its experts are there. Sends are in the order of their rank,
and of their token. Everything here is made on the device of the ids, and the host reads nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.moe import Routing


class Sends(NamedTuple):
    """The sends of a rank's own tokens.

    Attributes:
        routing: of tokens to ranks, as ``moe.Routing`` has that of tokens to experts: its rows are sends. A token has k
            places for ranks, filled in ascending order.
        carriers: int32 (T, k), the send that carries each choice; -1 for ids that are no expert.
        local_index: int32 (sends, k), the ids of each send's choices at its rank; -1 for choices of other ranks. Rows
            after the last send are -1.
    """

    routing: Routing
    carriers: Tensor
    local_index: Tensor


class Plan(NamedTuple):
    """A routing over ranks that ``ExpertParallel.plan`` has made and all ranks have agreed on. ``dispatch`` takes it
    instead of ids, any number of times: a recomputation does not route tokens again.

    Attributes:
        sends: of this rank's tokens.
        matrix: ``matrix[s][r]`` is how many tokens rank s sends to rank r; None where the host does not know.
        local_index: int32 (R, k), of the tokens that have arrived: their choices among this rank's experts, -1 for
            those of other ranks. Tokens of one source are in its order, sources in theirs.
        routing: of ``local_index`` to this rank's experts.
        tokens: of this rank.
        choices: of all tokens that arrive, those of this rank's experts; None where the host does not know.
    """

    sends: Sends
    matrix: tuple[tuple[int, ...], ...] | None
    local_index: Tensor
    routing: Routing
    tokens: int
    choices: int | None = None


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
    device = top_k_index.device
    known = (top_k_index >= 0) & (top_k_index < ranks * num_local_experts)
    rank = torch.where(known, top_k_index // num_local_experts, ranks)
    before = torch.ones(top_k, top_k, dtype=torch.bool, device=device).tril(-1)  # (j, i): i comes before j
    again = ((rank[:, :, None] == rank[:, None, :]) & before).any(2)
    first = known & ~again
    place = (first[:, None, :] & (rank[:, None, :] < rank[:, :, None])).sum(2)  # of a choice's rank among its token's
    table = torch.full((tokens, top_k + 1), -1, dtype=torch.int32, device=device)
    table.scatter_(1, torch.where(first, place, top_k), rank.int())
    table = table[:, :top_k]
    routing = Routing.of(table, ranks, backend=backend)
    carriers = routing.rows.reshape(tokens, top_k).gather(1, place.clamp(max=top_k - 1))
    carriers = torch.where(known, carriers, -1)
    of_token = routing.tokens.long()
    goal = table.reshape(-1).index_select(0, routing.choices.long())[:, None]
    local = (top_k_index - rank * num_local_experts).int().index_select(0, of_token)
    here = (rank.index_select(0, of_token) == goal) & (goal >= 0)
    return Sends(routing, carriers, torch.where(here, local, -1))


def counts_of(sends: Sends) -> Tensor:
    """How many sends each rank gets, and how many choices they carry: int64 (ranks, 2)."""
    ends = sends.routing.ends.long()
    carried = (sends.local_index >= 0).sum(1)
    until = torch.cat([carried.new_zeros(1), carried.cumsum(0)])  # choices before each send
    both = torch.stack([ends, until.index_select(0, ends)], 1)
    return both.diff(dim=0, prepend=both.new_zeros(1, 2))


def of_choices(weights: Tensor, sends: Sends) -> Tensor:
    """Lay out the float32 weights (T, k) of choices for their sends: (sends, k), 0 for choices of other ranks."""
    local = sends.local_index
    rows = weights.index_select(0, sends.routing.tokens.long()[: local.shape[0]])
    return torch.where(local >= 0, rows, 0.0)


def to_choices(values: Tensor, sends: Sends) -> Tensor:
    """Return float32 values (sends, k) to the choices (T, k) that they belong to; 0 for ids that are no expert. Values
    of a send's other choices are not read."""
    tokens, top_k = sends.carriers.shape
    if not values.shape[0]:
        return values.new_zeros(tokens, top_k)
    column = torch.arange(top_k, dtype=torch.int64, device=values.device)
    at = sends.carriers.long().clamp(min=0) * top_k + column
    found = values.reshape(-1).index_select(0, at.reshape(-1)).reshape(tokens, top_k)
    return torch.where(sends.carriers >= 0, found, 0.0)
