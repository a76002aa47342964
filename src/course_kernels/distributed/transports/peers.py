"""Launches of the kernels that write to other ranks' memory. The host reads nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.distributed.plan import Sends
from course_kernels.moe import Routing
from course_kernels.moe.launching import launch


class Peers(NamedTuple):
    """The memory of a group's ranks, as one rank sees it.

    Attributes:
        addresses: int64 (ranks,), of each rank's memory, on the device.
        here: this rank.
        most: rows that each rank keeps for each other one.
        offset: bytes of the memory before those rows; a multiple of 16.
    """

    addresses: Tensor
    here: int
    most: int
    offset: int = 0


def _block(columns: int, most: int) -> int:
    return min(most, max(16, 1 << (columns - 1).bit_length()))


def _align(columns: int, itemsize: int) -> int:
    """Return the alignment of the rows' addresses in bytes, at most 16. The memory itself is aligned to 16."""
    size = columns * itemsize
    return min(16, size & -size)


def put(x: Tensor, sends: Sends, peers: Peers, *, by_token: bool, fill: int | None = None) -> None:
    """Put rows into the memory of sends' ranks.

    Args:
        x: (T, COLS) of tokens, or (sends, COLS).
        sends: which go where.
        peers: to whose memory.
        by_token: x has a row for each token.
        fill: written to rows of this source that no send fills.
    """
    columns = x.shape[1]
    if not columns or (not x.shape[0] and fill is None):
        return
    if not x.shape[0]:  # nothing is read, but the kernel wants an address
        x = x.new_zeros(1, columns)
    block_n = _block(columns, 1024)
    block_m = max(1, 4096 // block_n)
    ranks = peers.addresses.shape[0]
    launch(
        "peers", "put_kernel", ranks * -(-peers.most // block_m), x.shape[0], x_ptr=x,
        index_ptr=sends.routing.tokens if by_token else None, offs_ptr=sends.routing.ends, peers_ptr=peers.addresses,
        offset=peers.offset, here=peers.here, most=peers.most, stride_t=x.stride(0), stride_h=x.stride(1), COLS=columns,
        ALIGN=_align(columns, x.element_size()), FILL=fill, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip


def push(
    rows: Tensor, routing: Routing, peers: Peers, *, of_experts: bool = False, weights: Tensor | None = None
) -> None:
    """Push a result for each token that has arrived into the memory of the rank that it came from. Tokens without a
    choice here have none, and nothing of theirs is read.

    Args:
        rows: (ranks * most, COLS), a result of each token; or those of experts, contiguous, which are summed on the
            way, as ``steps.combine`` does.
        routing: of the tokens that have arrived.
        peers: whose memory.
        of_experts: whether rows are those of experts.
        weights: float32 (ranks * most, k), contiguous, of the choices, for rows of experts; None for weights of 1.
    """
    columns, ranks = rows.shape[1], peers.addresses.shape[0]
    if not rows.numel():
        return
    block_n = _block(columns, 512)
    block_m = max(1, 2048 // block_n)
    launch(
        "peers", "push_kernel", ranks * -(-peers.most // block_m) * -(-columns // block_n), None, rows_ptr=rows,
        positions_ptr=routing.rows, weights_ptr=weights, peers_ptr=peers.addresses, offset=peers.offset,
        here=peers.here, most=peers.most, stride_r=rows.stride(0), stride_h=rows.stride(1), COLS=columns,
        TOP_K=routing.rows.shape[0] // (ranks * peers.most), SUMS=of_experts,
        ALIGN=_align(columns, rows.element_size()), BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip


def returning(sends: Sends, most: int) -> Sends:
    """Number sends by the rows of this rank's memory where their results come home: ``rows`` of the routing, and the
    ``carriers``."""
    (tokens, top_k), routing = sends.carriers.shape, sends.routing
    if not sends.carriers.numel():
        return sends
    rows, carriers = torch.empty_like(routing.rows), torch.empty_like(sends.carriers)
    launch(
        "peers", "homes_kernel", -(-carriers.numel() // 256), tokens, positions_ptr=routing.rows,
        carriers_ptr=sends.carriers, offs_ptr=routing.ends, rows_ptr=rows, carried_ptr=carriers, most=most,
        PLACES=rows.shape[0] // tokens, TOP_K=top_k, RANKS=routing.ends.shape[0], BLOCK=256,
    )  # fmt: skip
    return sends._replace(routing=routing._replace(rows=rows), carriers=carriers)
