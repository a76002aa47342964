"""The plan of expert parallelism: the ranks of each token, and what each of its sends carries.

A token has PLACES = min(TOP_K, RANKS) places for ranks. Rank r has the LOCAL experts from r * LOCAL on.
"""

from __future__ import annotations

from course_kernels.kernels.language import tl, triton


@triton.jit
def load_choices(
    ids_ptr, token, tokens, stride_t, stride_k,
    TOP_K: tl.constexpr, LOCAL: tl.constexpr, RANKS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The experts that tokens chose, and their ranks: RANKS for those that are none, and for tokens that do not
    exist."""
    column = tl.arange(0, BLOCK_K).to(tl.int64)
    there = (token < tokens)[:, None] & (column < TOP_K)[None, :]
    at = ids_ptr + token.to(tl.int64)[:, None] * stride_t + column[None, :] * stride_k
    expert = tl.load(at, mask=there, other=-1)
    known = (expert >= 0) & (expert < RANKS * LOCAL)
    expert = tl.where(known, expert, RANKS * LOCAL).to(tl.int32)
    return expert, expert // LOCAL


@triton.jit(do_not_specialize=["tokens"])
def ranks_kernel(
    ids_ptr, ranks_ptr, parts_ptr, tokens, stride_t, stride_k,
    TOP_K: tl.constexpr, LOCAL: tl.constexpr, RANKS: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """The ranks of each token, once each, ascending; then -1. A program has BLOCK tokens.

    Args:
        ids_ptr: (tokens, TOP_K), any strides.
        ranks_ptr: int32 (tokens, PLACES).
        parts_ptr: int32 (programs, RANKS): how many choices of a program's tokens are of each rank.
    """
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _, rank = load_choices(ids_ptr, token, tokens, stride_t, stride_k, TOP_K, LOCAL, RANKS, BLOCK_K)
    last = tl.full((BLOCK,), -1, tl.int32)
    for place in range(PLACES):
        last = tl.min(tl.where(rank > last[:, None], rank, RANKS), 1)
        tl.store(ranks_ptr + token * PLACES + place, tl.where(last < RANKS, last, -1), mask=token < tokens)
    for first in range(0, RANKS, BLOCK_R):
        ranks = first + tl.arange(0, BLOCK_R)
        found = tl.sum(tl.sum((rank[:, :, None] == ranks[None, None, :]).to(tl.int32), 1), 0)
        tl.store(parts_ptr + tl.program_id(0) * RANKS + ranks, found, mask=ranks < RANKS)


@triton.jit(do_not_specialize=["tokens"])
def sends_kernel(
    ids_ptr, ranks_ptr, parts_ptr, offs_ptr, slots_ptr, positions_ptr, local_ptr, carriers_ptr, counts_ptr, tokens,
    stride_t, stride_k,
    TOP_K: tl.constexpr, LOCAL: tl.constexpr, RANKS: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """The choices of sends, and the sends of choices. A program has BLOCK of each; the last one has the counts.

    Args:
        ids_ptr, ranks_ptr, parts_ptr: of ``ranks_kernel``.
        offs_ptr, slots_ptr, positions_ptr: a ``Routing`` of the ranks.
        local_ptr: int32 (tokens * PLACES, TOP_K), for each send its choices' ids at its rank; -1 for choices of other
            ranks, and after the last send.
        carriers_ptr: int32 (tokens, TOP_K), the send of each choice; -1 for ids that are no expert.
        counts_ptr: int32 (RANKS + 1, 2), the sends to each rank and the choices of that rank; then tokens, TOP_K.
    """
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, BLOCK_K)
    valid = number < tokens * PLACES
    slot = tl.load(slots_ptr + number, mask=valid, other=0)
    goal = tl.load(ranks_ptr + slot, mask=valid, other=-1)
    expert, rank = load_choices(ids_ptr, slot // PLACES, tokens, stride_t, stride_k, TOP_K, LOCAL, RANKS, BLOCK_K)
    local = tl.where(rank == goal[:, None], expert - rank * LOCAL, -1)
    at = local_ptr + number.to(tl.int64)[:, None] * TOP_K + column[None, :]
    tl.store(at, local, mask=valid[:, None] & (column < TOP_K)[None, :])

    valid = number < tokens  # from here on these are numbers of tokens
    _, rank = load_choices(ids_ptr, number, tokens, stride_t, stride_k, TOP_K, LOCAL, RANKS, BLOCK_K)
    carrier = tl.full((BLOCK, BLOCK_K), -1, tl.int32)
    for place in range(PLACES):
        goal = tl.load(ranks_ptr + number * PLACES + place, mask=valid, other=-1)
        send = tl.load(positions_ptr + number * PLACES + place, mask=valid, other=-1)
        carrier = tl.where(rank == goal[:, None], send[:, None], carrier)
    at = carriers_ptr + number[:, None] * TOP_K + column[None, :]
    tl.store(at, carrier, mask=valid[:, None] & (column < TOP_K)[None, :])

    if tl.program_id(0) == tl.num_programs(0) - 1:
        parts = tl.cdiv(tokens, BLOCK)
        for first in range(0, RANKS, BLOCK_R):
            ranks = first + tl.arange(0, BLOCK_R)
            inside = ranks < RANKS
            carried = tl.zeros((BLOCK_R,), tl.int32)
            for part in range(0, parts, BLOCK):
                each = part + tl.arange(0, BLOCK)
                found = parts_ptr + each[:, None] * RANKS + ranks[None, :]
                carried += tl.sum(tl.load(found, mask=(each < parts)[:, None] & inside[None, :], other=0), 0)
            ends = tl.load(offs_ptr + ranks, mask=inside, other=0)
            starts = tl.load(offs_ptr + ranks - 1, mask=inside & (ranks > 0), other=0)
            tl.store(counts_ptr + 2 * ranks, ends - starts, mask=inside)
            tl.store(counts_ptr + 2 * ranks + 1, carried, mask=inside)
        tl.store(counts_ptr + 2 * RANKS, tokens)
        tl.store(counts_ptr + 2 * RANKS + 1, TOP_K)


@triton.jit(do_not_specialize=["tokens"])
def pick_kernel(
    values_ptr, marks_ptr, rows_ptr, out_ptr, tokens, stride_t, stride_k, TOP_K: tl.constexpr, BLOCK: tl.constexpr
):
    """out[i, j] = values[rows[i], j] where marks[i, j] >= 0, else 0, and nothing is read. A program has BLOCK entries.

    Args:
        values_ptr: float32, TOP_K columns, any strides.
        marks_ptr: int32 (tokens, TOP_K).
        rows_ptr: int32 (tokens,); None where marks are the rows.
        out_ptr: float32 (tokens, TOP_K).
    """
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = entry // TOP_K < tokens
    row = tl.load(marks_ptr + entry, mask=there, other=-1)
    found = row >= 0
    if rows_ptr is not None:
        row = tl.load(rows_ptr + entry // TOP_K, mask=found, other=0)
    at = values_ptr + row.to(tl.int64) * stride_t + entry % TOP_K * stride_k
    tl.store(out_ptr + entry, tl.load(at, mask=found, other=0.0), mask=there)
