"""Launches of the kernels that reach other ranks' memory. The host reads nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.distributed.plan import Sends
from course_kernels.moe.launching import launch


class Peers(NamedTuple):
    """The memory of a group's ranks, as one rank sees it.

    Attributes:
        addresses: int64 (ranks,), of each rank's memory, on the device.
        here: this rank.
        most: rows that each rank keeps for each source.
    """

    addresses: Tensor
    here: int
    most: int


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
        here=peers.here, most=peers.most, stride_t=x.stride(0), stride_h=x.stride(1), COLS=columns,
        ALIGN=_align(columns, x.element_size()), FILL=fill, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip


def fetch_sum(out: Tensor, sends: Sends, peers: Peers) -> Tensor:
    """Fill out (T, COLS), contiguous, with the sums of what tokens' sends have at their ranks. Returns it."""
    tokens, columns = out.shape
    if not out.numel():
        return out
    block_n = _block(columns, 512)
    block_m = max(1, 2048 // block_n)
    launch(
        "peers", "fetch_sum_kernel", -(-tokens // block_m) * -(-columns // block_n), tokens,
        peers_ptr=peers.addresses, offs_ptr=sends.routing.ends, positions_ptr=sends.routing.rows, out_ptr=out,
        here=peers.here, most=peers.most, COLS=columns, RANKS=peers.addresses.shape[0],
        PLACES=sends.routing.rows.shape[0] // tokens, ALIGN=_align(columns, out.element_size()), BLOCK_M=block_m,
        BLOCK_N=block_n,
    )  # fmt: skip
    return out


def fetch(sends: Sends, peers: Peers) -> Tensor:
    """Fetch a float32 value for each choice, (T, k): its column in the row of the send that carries it."""
    tokens, top_k = sends.carriers.shape
    out = torch.empty(tokens, top_k, dtype=torch.float32, device=sends.carriers.device)
    if out.numel():
        launch(
            "peers", "fetch_kernel", -(-out.numel() // 256), tokens, peers_ptr=peers.addresses,
            offs_ptr=sends.routing.ends, carriers_ptr=sends.carriers, out_ptr=out, here=peers.here,
            most=peers.most, TOP_K=top_k, RANKS=peers.addresses.shape[0], BLOCK=256,
        )  # fmt: skip
    return out
