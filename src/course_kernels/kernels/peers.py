"""Rows into other ranks' memory, by pointer: tokens to their ranks, and results home. Nothing is read from there.

A rank keeps ``most`` rows for each other rank. On the way out, row ``source * most + t`` is token t of a source. On the
way home, row ``rank * most + t`` is a rank's result for token t.
"""

from __future__ import annotations

from course_kernels.kernels.language import tl, triton
from course_kernels.kernels.moe_rows import sums_of
from course_kernels.kernels.moe_sends import load_choices


@triton.jit(do_not_specialize=["tokens"])
def homes_kernel(
    ids_ptr, rows_ptr, carriers_ptr, tokens, most, stride_t, stride_k,
    TOP_K: tl.constexpr, LOCAL: tl.constexpr, RANKS: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Where results of tokens come home. A program has BLOCK tokens.

    Args:
        ids_ptr: (tokens, TOP_K), any strides.
        rows_ptr: int32 (tokens, PLACES): the rows of each token's ranks, once each, ascending; then -1.
        carriers_ptr: int32 (tokens, TOP_K): the row of each choice; -1 for ids that are no expert.
    """
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, BLOCK_K)
    _, rank = load_choices(ids_ptr, token, tokens, stride_t, stride_k, TOP_K, LOCAL, RANKS, BLOCK_K)
    carrier = tl.where(rank < RANKS, rank * most + token[:, None], -1)
    at = carriers_ptr + token.to(tl.int64)[:, None] * TOP_K + column[None, :]
    tl.store(at, carrier, mask=(token < tokens)[:, None] & (column < TOP_K)[None, :])
    last = tl.full((BLOCK,), -1, tl.int32)
    for place in range(PLACES):
        last = tl.min(tl.where(rank > last[:, None], rank, RANKS), 1)
        row = tl.where(last < RANKS, last * most + token, -1)
        tl.store(rows_ptr + token.to(tl.int64) * PLACES + place, row, mask=token < tokens)


@triton.jit
def goes_to(carrier, peer, most):
    """Whether choices are of a rank, from their rows in ``homes_kernel``."""
    return (carrier >= 0) & (carrier // most == peer)


@triton.jit(do_not_specialize=["tokens"])
def tell_kernel(
    ids_ptr, weights_ptr, carriers_ptr, peers_ptr, ids_offset, weights_offset, here, most, tokens,
    ids_stride_t, ids_stride_k, stride_t, stride_k,
    TOP_K: tl.constexpr, LOCAL: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Tell each rank which of its experts tokens chose, and with which weights: -1 and 0 for choices of other ranks,
    and for the rest of its ``most`` rows. A program has BLOCK entries for one rank.

    Args:
        ids_ptr: (tokens, TOP_K), any strides; or None, and no ids are written.
        weights_ptr: float32 (tokens, TOP_K), any strides; or None, likewise.
        carriers_ptr: of ``homes_kernel``.
        peers_ptr: int64, the address of each rank's memory.
        ids_offset, weights_offset: bytes of that memory before each.
        here, most: this rank, and rows for each source.
    """
    peer = (here + 1 + tl.program_id(0)) % RANKS
    entry = tl.program_id(0) // RANKS * BLOCK + tl.arange(0, BLOCK)
    token, column = (entry // TOP_K).to(tl.int64), entry % TOP_K
    mine = goes_to(tl.load(carriers_ptr + entry, mask=token < tokens, other=-1), peer, most)
    written, line = entry < most * TOP_K, here * most * TOP_K + entry
    memory = tl.load(peers_ptr + peer)
    if ids_ptr is not None:
        expert = tl.load(ids_ptr + token * ids_stride_t + column * ids_stride_k, mask=mine, other=0).to(tl.int32)
        out_ptr = (memory + ids_offset).to(tl.pointer_type(tl.int32))
        tl.store(out_ptr + line, tl.where(mine, expert - peer * LOCAL, -1), mask=written)
    if weights_ptr is not None:
        weight = tl.load(weights_ptr + token * stride_t + column * stride_k, mask=mine, other=0.0)
        tl.store((memory + weights_offset).to(tl.pointer_type(tl.float32)) + line, weight, mask=written)


@triton.jit(do_not_specialize=["tokens"])
def put_kernel(
    x_ptr, carriers_ptr, peers_ptr, offset, here, most, tokens, stride_t, stride_h,
    COLS: tl.constexpr, TOP_K: tl.constexpr, RANKS: tl.constexpr, ALIGN: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Put each token into the memory of its ranks, from row ``here * most`` on; rows of no token are not written. One
    program has BLOCK_M tokens and one rank. Neighbouring programs write to different ranks, so that rows travel to all
    of them at the same time.

    Args:
        x_ptr: (tokens, COLS), any strides.
        carriers_ptr: of ``homes_kernel``.
        peers_ptr: int64, the address of each rank's memory; with ``offset`` multiples of ALIGN, as are rows there.
        offset: bytes of that memory before the rows.
        here, most: this rank, and rows for each source.
    """
    peer = (here + 1 + tl.program_id(0)) % RANKS
    token = tl.program_id(0) // RANKS * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_K)
    there = (token < tokens)[:, None] & (column < TOP_K)[None, :]
    carriers = tl.load(carriers_ptr + token.to(tl.int64)[:, None] * TOP_K + column[None, :], mask=there, other=-1)
    goes = tl.max(goes_to(carriers, peer, most).to(tl.int32), 1) > 0
    address = tl.load(peers_ptr + peer) + offset
    out_ptr = tl.multiple_of(address.to(tl.pointer_type(x_ptr.dtype.element_ty)), ALIGN)
    line = out_ptr + (here * most + token).to(tl.int64)[:, None] * COLS
    for first in range(0, COLS, BLOCK_N):
        cols = first + tl.arange(0, BLOCK_N)
        inside = goes[:, None] & (cols < COLS)[None, :]
        at = x_ptr + token.to(tl.int64)[:, None] * stride_t + cols.to(tl.int64)[None, :] * stride_h
        tl.store(line + cols[None, :], tl.load(at, mask=inside), mask=inside)


@triton.jit
def pieces_kernel(
    choices_ptr, ends_ptr, starts_ptr, piece_ends_ptr, here, most, divided,
    TOP_K: tl.constexpr, EXPERTS: tl.constexpr, RANKS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Divide an expert's rows, which are in the order of ranks, among the ranks. TILE rows at a time, from the expert's
    first row on, belong to the rank among theirs whose tokens arrive last: so a product has no more tiles than without
    pieces. All rows of experts from number ``divided`` on belong to the last rank. A program has an expert.

    Args:
        choices_ptr, ends_ptr: int32, of the ``Routing`` of tokens that arrive, ``most`` of each rank.
        starts_ptr, piece_ends_ptr: int32 (RANKS * EXPERTS,), first row and the one after the last, of each rank in the
            order in which tokens arrive: those of ``here``, of the rank before it, and so on.
    """
    expert, source = tl.program_id(0), tl.arange(0, BLOCK)
    first = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0)
    last = tl.load(ends_ptr + expert)
    # Each rank's first row and the one after its last: the first with so great a choice, between "low" and "high".
    low, high = tl.zeros((BLOCK,), tl.int32) + first, tl.zeros((BLOCK,), tl.int32) + last
    end, end_high = low, high
    least = source * most * TOP_K
    while tl.max(tl.maximum(high - low, end_high - end), 0) > 0:
        middle, inside = (low + high) // 2, low < high
        before = inside & (tl.load(choices_ptr + middle, mask=inside, other=0) < least)
        low, high = tl.where(before, middle + 1, low), tl.where(inside & ~before, middle, high)
        middle, inside = (end + end_high) // 2, end < end_high
        before = inside & (tl.load(choices_ptr + middle, mask=inside, other=0) < least + most * TOP_K)
        end, end_high = tl.where(before, middle + 1, end), tl.where(inside & ~before, middle, end_high)
    step, there = (here - source + RANKS) % RANKS, (low < end) & (source < RANKS)
    tile, last_tile = (low - first) // TILE, (end - 1 - first) // TILE
    later = there[None, :] & (step[None, :] > step[:, None])
    in_first = (tile[None, :] <= tile[:, None]) & (last_tile[None, :] >= tile[:, None])
    in_last = (tile[None, :] <= last_tile[:, None]) & (last_tile[None, :] >= last_tile[:, None])
    begin = tile + tl.max((later & in_first).to(tl.int32), 1)
    stop = last_tile + 1 - tl.max((later & in_last).to(tl.int32), 1)
    begin, stop = first + begin * TILE, tl.minimum(first + stop * TILE, last)
    whole = expert >= divided
    begin, stop = tl.where(whole, first, begin), tl.where(whole, last, stop)
    there = tl.where(whole, step == RANKS - 1, there) & (begin < stop)
    at = step * EXPERTS + expert
    tl.store(starts_ptr + at, tl.where(there, begin, 0), mask=source < RANKS)
    tl.store(piece_ends_ptr + at, tl.where(there, stop, 0), mask=source < RANKS)


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
