"""Launches of the kernels that write to other ranks' memory. The host reads nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels.distributed.plan import Homes
from course_kernels.engine.product import Pieces
from course_kernels.moe import Routing
from course_kernels.moe.launching import Launch, aligned, kept

_ENTRIES = 512  # choices that a program has
_TILE = 256  # rows that a product's clusters multiply at a time, at most


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


def _power(extent: int) -> int:
    return 1 << (extent - 1).bit_length()


def _block(columns: int, most: int) -> int:
    return min(most, max(16, _power(columns)))


def _align(columns: int, itemsize: int) -> int:
    """Return the alignment of the rows' addresses in bytes, at most 16. The memory itself is aligned to 16."""
    size = columns * itemsize
    return min(16, size & -size)


def homes_of(top_k_index: Tensor, num_local_experts: int, ranks: int, most: int) -> Homes:
    """Find where results of tokens come home; arguments as of ``plan.sends_of``."""
    tokens, top_k = top_k_index.shape
    places = min(top_k, ranks)
    rows = torch.empty(tokens, places, dtype=torch.int32, device=top_k_index.device)
    carriers = torch.empty(tokens, top_k, dtype=torch.int32, device=top_k_index.device)

    def make() -> Launch:
        block_k, (stride_t, stride_k) = _power(top_k), top_k_index.stride()
        block = max(1, _ENTRIES // block_k)
        return Launch(
            "peers", "homes_kernel", -(-tokens // block), tokens, ("ids_ptr", "rows_ptr", "carriers_ptr"), most=most,
            stride_t=stride_t, stride_k=stride_k, TOP_K=top_k, LOCAL=num_local_experts, RANKS=ranks, PLACES=places,
            BLOCK=block, BLOCK_K=block_k,
        )  # fmt: skip

    if tokens:
        key = "homes", *_form(top_k_index), num_local_experts, ranks, most
        kept(key, make)(top_k_index, rows, carriers)
    return Homes(rows, carriers)


def tell(
    homes: Homes, num_local_experts: int, ids: Tensor | None, weights: Tensor | None, of_ids: Peers | None,
    of_weights: Peers | None,
) -> None:  # fmt: skip
    """Tell each rank which of its experts tokens chose: -1 for choices of other ranks, and in rows of no token. And
    with which weights: 0 for these.

    Args:
        homes: of the tokens.
        num_local_experts: of each rank.
        ids, weights: (T, k), integers and float32; either may be None.
        of_ids, of_weights: parts of all ranks' memory; None without the one or the other.
    """
    (tokens, top_k), carriers, peers = homes.carriers.shape, homes.carriers, of_ids or of_weights
    if not tokens:  # nothing is read, but the kernel wants addresses
        carriers = carriers.new_zeros(1, top_k)
        ids, weights = (None if each is None else each.new_zeros(1, top_k) for each in (ids, weights))
    addresses, here, most, _ = peers
    offsets = [each.offset if each else 0 for each in (of_ids, of_weights)]

    def make() -> Launch:
        ranks, strides = addresses.shape[0], [(0, 0) if each is None else each.stride() for each in (ids, weights)]
        return Launch(
            "peers", "tell_kernel", ranks * -(-most * top_k // _ENTRIES), tokens,
            ("ids_ptr", "weights_ptr", "carriers_ptr", "peers_ptr"), ids_offset=offsets[0], weights_offset=offsets[1],
            here=here, most=most, ids_stride_t=strides[0][0], ids_stride_k=strides[0][1], stride_t=strides[1][0],
            stride_k=strides[1][1], TOP_K=top_k, LOCAL=num_local_experts, RANKS=ranks, BLOCK=_ENTRIES,
        )  # fmt: skip

    forms = [None if each is None else _form(each) for each in (ids, weights)]
    key = "tell", tokens, top_k, *forms, num_local_experts, *_form(addresses), here, most, *offsets
    kept(key, make)(ids, weights, carriers, addresses)


def put(x: Tensor, homes: Homes, peers: Peers) -> None:
    """Put tokens x (T, COLS) into the memory of their ranks."""
    if not x.numel():
        return
    (tokens, columns), top_k, (addresses, here, most, offset) = x.shape, homes.carriers.shape[1], peers

    def make() -> Launch:
        block_n, ranks = _block(columns, 1024), addresses.shape[0]
        block_m = max(1, 4096 // block_n)
        return Launch(
            "peers", "put_kernel", ranks * -(-tokens // block_m), tokens, ("x_ptr", "carriers_ptr", "peers_ptr"),
            offset=offset, here=here, most=most, stride_t=x.stride(0), stride_h=x.stride(1), COLS=columns, TOP_K=top_k,
            RANKS=ranks, ALIGN=_align(columns, x.element_size()), BLOCK_M=block_m, BLOCK_N=block_n,
            BLOCK_K=_power(top_k),
        )  # fmt: skip

    key = "put", *_form(x), top_k, *_form(addresses), here, most, offset
    kept(key, make)(x, homes.carriers, addresses)


def pieces_of(
    routing: Routing, peers: Peers, top_k: int, arrived: Tensor, milliseconds: int, divided: int
) -> Pieces:  # fmt: skip
    """The pieces of experts' rows that can be multiplied once a rank's tokens are there, in the order in which they
    arrive: those of this rank, of the one before it, and so on.

    Args:
        routing: of the tokens that have arrived or will.
        peers: the memory that they arrive in.
        top_k: choices of a token.
        arrived, milliseconds: of ``Pieces``.
        divided: how many experts are divided among ranks. All rows of the others wait for all tokens.
    """
    experts, (addresses, here, most, _) = routing.ends.shape[0], peers
    ranks = addresses.shape[0]
    starts, ends = torch.empty(2, ranks * experts, dtype=torch.int32, device=addresses.device)

    def make() -> Launch:
        return Launch(
            "peers", "pieces_kernel", experts, None, ("choices_ptr", "ends_ptr", "starts_ptr", "piece_ends_ptr"),
            here=here, most=most, divided=divided, TOP_K=top_k, EXPERTS=experts, RANKS=ranks, TILE=_TILE,
            BLOCK=max(2, _power(ranks)),
        )  # fmt: skip

    tensors = routing.choices, routing.ends, starts, ends
    key = "pieces", *_form(addresses), experts, here, most, divided, top_k, _TILE, *aligned(*tensors)
    kept(key, make)(*tensors)
    return Pieces(starts, ends, arrived, milliseconds)


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
    if not rows.numel():
        return
    columns, top_k, (addresses, here, most, offset) = rows.shape[1], routing.rows.shape[1], peers

    def make() -> Launch:
        block_n, ranks = _block(columns, 512), addresses.shape[0]
        block_m = max(1, 2048 // block_n)
        return Launch(
            "peers", "push_kernel", ranks * -(-most // block_m) * -(-columns // block_n), None,
            ("rows_ptr", "positions_ptr", "weights_ptr", "peers_ptr"), offset=offset, here=here, most=most,
            stride_r=rows.stride(0), stride_h=rows.stride(1), COLS=columns, TOP_K=top_k, SUMS=of_experts,
            ALIGN=_align(columns, rows.element_size()), BLOCK_M=block_m, BLOCK_N=block_n,
        )  # fmt: skip

    places = routing.rows
    key = "push", *_form(rows), top_k, of_experts, *_form(addresses), here, most, offset, *aligned(places, weights)
    kept(key, make)(rows, places, weights, addresses)


def _form(tensor: Tensor) -> tuple:
    """The properties of a tensor that a launch depends on; of its address only the alignment."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() & 15
