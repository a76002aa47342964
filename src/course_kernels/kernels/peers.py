"""Rows into and out of other ranks' memory, by pointer.

A rank keeps ``most`` rows for each source. Row s of a source is that source's send number s to this rank.
"""

from __future__ import annotations

from course_kernels.kernels.language import tl, triton


@triton.jit(do_not_specialize=["tokens"])
def put_kernel(
    x_ptr, index_ptr, offs_ptr, peers_ptr, here, most, tokens, stride_t, stride_h,
    COLS: tl.constexpr, ALIGN: tl.constexpr, FILL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Put the rows of sends to each rank at ``here * most`` of its memory. One program has BLOCK_M rows of one rank.
    Ranks begin with the one after them: if all began with the same, its link would be all they have.

    Args:
        x_ptr: rows of any strides; COLS columns.
        index_ptr: the row of x of each send; None where the rows are sends.
        offs_ptr: the exclusive end of each rank's sends.
        peers_ptr: int64, the address of each rank's memory; multiples of ALIGN, as are rows there.
        here, most: this rank, and rows for each source.
        FILL: written to the rest of the ``most`` rows; None writes nothing.
    """
    blocks = tl.cdiv(most, BLOCK_M)
    peer = (here + 1 + tl.program_id(0) // blocks) % (tl.num_programs(0) // blocks)
    rows = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    start = tl.load(offs_ptr + peer - 1, mask=peer > 0, other=0)
    count = tl.load(offs_ptr + peer) - start
    valid = rows < count
    sources = (start + rows).to(tl.int64)
    if index_ptr is not None:
        sources = tl.load(index_ptr + sources, mask=valid, other=0).to(tl.int64)
    out_ptr = tl.multiple_of(tl.load(peers_ptr + peer).to(tl.pointer_type(x_ptr.dtype.element_ty)), ALIGN)
    line = out_ptr + (here * most + rows).to(tl.int64)[:, None] * COLS
    written = rows < (count if FILL is None else most)
    for first in range(0, COLS, BLOCK_N):
        cols = first + tl.arange(0, BLOCK_N)
        at = x_ptr + sources[:, None] * stride_t + cols.to(tl.int64)[None, :] * stride_h
        block = tl.load(at, mask=valid[:, None] & (cols < COLS)[None, :], other=0.0 if FILL is None else FILL)
        tl.store(line + cols[None, :], block, mask=written[:, None] & (cols < COLS)[None, :])


@triton.jit
def peer_rows(peers_ptr, offs_ptr, sends, here, most, RANKS: tl.constexpr):
    """The address of the memory of each send's rank, and the send's row there."""
    peer = tl.zeros(sends.shape, dtype=tl.int32)
    start = tl.zeros(sends.shape, dtype=tl.int32)
    for r in tl.static_range(RANKS - 1):
        end = tl.load(offs_ptr + r)
        peer = tl.where(sends >= end, r + 1, peer)
        start = tl.where(sends >= end, end, start)
    return tl.load(peers_ptr + peer), (here * most + sends - start).to(tl.int64)


@triton.jit(do_not_specialize=["tokens"])
def fetch_sum_kernel(
    peers_ptr, offs_ptr, positions_ptr, out_ptr, here, most, tokens,
    COLS: tl.constexpr, PLACES: tl.constexpr, RANKS: tl.constexpr, ALIGN: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[t] = the sum of what token t's sends have at their ranks: in float32, in the order of ranks, rounded once.

    Args:
        positions_ptr: (tokens * PLACES,) sends of each token in the order of ranks; less than 0 where it has none.
        out_ptr: (tokens, COLS), contiguous.
    """
    tiles_n = tl.cdiv(COLS, BLOCK_N)
    token = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    there = token < tokens
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for j in tl.static_range(PLACES):
        send = tl.load(positions_ptr + token * PLACES + j, mask=there, other=-1)
        address, row = peer_rows(peers_ptr, offs_ptr, send, here, most, RANKS)
        line = tl.multiple_of(address.to(tl.pointer_type(out_ptr.dtype.element_ty)), ALIGN) + row * COLS
        inside = (send >= 0)[:, None] & (cols < COLS)[None, :]
        acc += tl.load(line[:, None] + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    at = out_ptr + token.to(tl.int64)[:, None] * COLS + cols[None, :]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=there[:, None] & (cols < COLS)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def fetch_kernel(
    peers_ptr, offs_ptr, carriers_ptr, out_ptr, here, most, tokens,
    TOP_K: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[t, j] = column j of the send that carries choice j of token t, at its rank; 0 where none does. A program has
    BLOCK choices.

    Args:
        carriers_ptr, out_ptr: (tokens, TOP_K), contiguous; out float32.
    """
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = entries < tokens * TOP_K
    send = tl.load(carriers_ptr + entries, mask=there, other=-1)
    address, row = peer_rows(peers_ptr, offs_ptr, send, here, most, RANKS)
    at = address.to(tl.pointer_type(tl.float32)) + row * TOP_K + entries % TOP_K
    tl.store(out_ptr + entries, tl.load(at, mask=send >= 0, other=0.0), mask=there)
