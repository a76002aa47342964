"""Rows into other ranks' memory, by pointer: tokens to their ranks, and results home. Nothing is read from there.

A rank keeps ``most`` rows for each other rank. Row j for rank r is of send j between the two: on the way out the token
that r has sent, on the way home the result of r.
"""

from __future__ import annotations

from course_kernels.kernels.language import tl, triton
from course_kernels.kernels.moe_rows import sums_of


@triton.jit(do_not_specialize=["tokens"])
def put_kernel(
    x_ptr, index_ptr, offs_ptr, peers_ptr, offset, here, most, tokens, stride_t, stride_h,
    COLS: tl.constexpr, ALIGN: tl.constexpr, FILL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Put the rows of sends to each rank at ``here * most`` of its memory. One program has BLOCK_M rows of one rank.
    Neighbouring programs write to different ranks, so that rows travel to all of them at the same time.

    Args:
        x_ptr: rows of any strides; COLS columns.
        index_ptr: the row of x of each send; None where the rows are sends.
        offs_ptr: the exclusive end of each rank's sends.
        peers_ptr: int64, the address of each rank's memory; with ``offset`` multiples of ALIGN, as are rows there.
        offset: bytes of that memory before the rows.
        here, most: this rank, and rows for each source.
        FILL: written to the rest of the ``most`` rows; None writes nothing.
    """
    ranks = tl.num_programs(0) // tl.cdiv(most, BLOCK_M)
    peer = (here + 1 + tl.program_id(0)) % ranks
    rows = tl.program_id(0) // ranks * BLOCK_M + tl.arange(0, BLOCK_M)
    start = tl.load(offs_ptr + peer - 1, mask=peer > 0, other=0)
    count = tl.load(offs_ptr + peer) - start
    valid = rows < count
    sources = (start + rows).to(tl.int64)
    if index_ptr is not None:
        sources = tl.load(index_ptr + sources, mask=valid, other=0).to(tl.int64)
    address = tl.load(peers_ptr + peer) + offset
    out_ptr = tl.multiple_of(address.to(tl.pointer_type(x_ptr.dtype.element_ty)), ALIGN)
    line = out_ptr + (here * most + rows).to(tl.int64)[:, None] * COLS
    written = rows < (count if FILL is None else most)
    for first in range(0, COLS, BLOCK_N):
        cols = first + tl.arange(0, BLOCK_N)
        at = x_ptr + sources[:, None] * stride_t + cols.to(tl.int64)[None, :] * stride_h
        block = tl.load(at, mask=valid[:, None] & (cols < COLS)[None, :], other=0.0 if FILL is None else FILL)
        tl.store(line + cols[None, :], block, mask=written[:, None] & (cols < COLS)[None, :])


@triton.jit
def push_kernel(
    rows_ptr, positions_ptr, weights_ptr, peers_ptr, offset, here, most, stride_r, stride_h,
    COLS: tl.constexpr, TOP_K: tl.constexpr, SUMS: tl.constexpr, ALIGN: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Push a row for each token that has arrived to the rank that it came from: that of row ``source * most + j`` to
    row ``here * most + j`` there. Tokens without a choice here have none. A program has a block of one rank's rows;
    ranks in the order of ``put_kernel``.

    Args:
        rows_ptr: with SUMS rows of experts, contiguous, of which each token's sum is pushed, as ``combine_kernel``
            computes it; else a row of each token, of any strides.
        positions_ptr: (ranks * most * TOP_K,) the row of experts of each choice; less than 0 where it has none.
        weights_ptr: float32 (ranks * most * TOP_K,) of the choices; None for weights of 1.
        peers_ptr, offset, here, most: as for ``put_kernel``.
    """
    tiles_n = tl.cdiv(COLS, BLOCK_N)
    block, tile = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    ranks = tl.num_programs(0) // (tiles_n * tl.cdiv(most, BLOCK_M))
    peer = (here + 1 + block) % ranks
    rows = block // ranks * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    there, token = rows < most, peer * most + rows
    last = tl.full((BLOCK_M,), -1, dtype=tl.int32)
    for j in tl.static_range(TOP_K):
        last = tl.maximum(last, tl.load(positions_ptr + token * TOP_K + j, mask=there, other=-1))
    written = (last >= 0)[:, None] & (cols < COLS)[None, :]
    if SUMS:
        result = sums_of(rows_ptr, positions_ptr, weights_ptr, token, there, cols, COLS, TOP_K, BLOCK_M, BLOCK_N)
        result = result.to(rows_ptr.dtype.element_ty)
    else:
        at = rows_ptr + token.to(tl.int64)[:, None] * stride_r + cols.to(tl.int64)[None, :] * stride_h
        result = tl.load(at, mask=written, other=0.0)
    address = tl.load(peers_ptr + peer) + offset
    out_ptr = tl.multiple_of(address.to(tl.pointer_type(rows_ptr.dtype.element_ty)), ALIGN)
    line = out_ptr + (here * most + rows).to(tl.int64)[:, None] * COLS
    tl.store(line + cols[None, :], result, mask=written)


@triton.jit
def home_of(offs_ptr, sends, most, RANKS: tl.constexpr):
    """The row of this rank's memory to which the result of each send comes back. Rank r's results begin at row
    r * most, in the order of the sends to that rank. A negative entry of ``sends`` means no send, and is returned as it
    is."""
    home = sends
    for r in tl.static_range(RANKS - 1):
        end = tl.load(offs_ptr + r)
        home = tl.where(sends >= end, (r + 1) * most + sends - end, home)
    return home


@triton.jit(do_not_specialize=["tokens"])
def homes_kernel(
    positions_ptr, carriers_ptr, offs_ptr, rows_ptr, carried_ptr, tokens, most, PLACES: tl.constexpr,
    TOP_K: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Where the results of sends come home. A program has BLOCK entries of both tensors; PLACES is at most TOP_K.

    Args:
        positions_ptr: (tokens * PLACES,) the sends of tokens, less than 0 for none; rows_ptr: theirs.
        carriers_ptr: (tokens * TOP_K,) the sends of choices, likewise; carried_ptr: theirs.
        offs_ptr: the exclusive end of each rank's sends.
    """
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of_tokens, of_choices = entries < tokens * PLACES, entries < tokens * TOP_K
    sends = tl.load(positions_ptr + entries, mask=of_tokens, other=-1)
    tl.store(rows_ptr + entries, home_of(offs_ptr, sends, most, RANKS), mask=of_tokens)
    sends = tl.load(carriers_ptr + entries, mask=of_choices, other=-1)
    tl.store(carried_ptr + entries, home_of(offs_ptr, sends, most, RANKS), mask=of_choices)
