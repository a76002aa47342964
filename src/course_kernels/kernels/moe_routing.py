"""Sorting by expert: where each of a token's rows goes, stable, with no atomics and nothing read on the host.

An *entry* is a token's choice of an expert: entry i is choice i % TOP_K of token i // TOP_K. Its *position* is its
place among all entries sorted by expert; entries of one expert keep their order. Entries whose expert is none of
[0, EXPERTS) come last, as those of expert EXPERTS.

Few entries are compared with each other, all with all, in one launch. Many are cut into chunks and counted by chunk and
expert; then each entry finds its place from sums of these counts and a comparison with the entries of its chunk. Sums
over few chunks are made where they are used, those over many in a launch between the two.
"""

from __future__ import annotations

from course_kernels.kernels.language import tl, triton


@triton.jit
def load_experts(ids_ptr, entries, count, stride_t, stride_k, TOP_K: tl.constexpr, EXPERTS: tl.constexpr):
    """The experts of entries, EXPERTS for those that are none; EXPERTS + 1 for entries from ``count`` on."""
    there = entries < count
    at = (entries // TOP_K).to(tl.int64) * stride_t + entries % TOP_K * stride_k
    expert = tl.load(ids_ptr + at, mask=there, other=0)
    expert = tl.where((expert < 0) | (expert >= EXPERTS), EXPERTS, expert).to(tl.int32)
    return tl.where(there, expert, EXPERTS + 1)


@triton.jit
def store_places(
    slots_ptr, tokens_ptr, positions_ptr, entries, expert, position, count, TOP_K: tl.constexpr, EXPERTS: tl.constexpr
):  # fmt: skip
    """Write both directions of the order: entry and token of each position; position of each entry, or -1."""
    there = entries < count
    tl.store(slots_ptr + position, entries, mask=there)
    tl.store(tokens_ptr + position, entries // TOP_K, mask=there)
    tl.store(positions_ptr + entries, tl.where(expert < EXPERTS, position, -1), mask=there)


@triton.jit(do_not_specialize=["tokens"])
def sort_few_kernel(
    ids_ptr, offs_ptr, slots_ptr, tokens_ptr, positions_ptr, tokens, stride_t, stride_k,
    TOP_K: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """All of the order in one launch: programs for BLOCK entries each, then programs for BLOCK experts' ends each.

    Args:
        ids_ptr: (tokens, TOP_K), any strides.
        offs_ptr: int32 (EXPERTS,); slots_ptr, tokens_ptr, positions_ptr: int32 (tokens * TOP_K,).
    """
    count = tokens * TOP_K
    parts = tl.cdiv(count, BLOCK)
    if tl.program_id(0) < parts:
        entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        expert = load_experts(ids_ptr, entries, count, stride_t, stride_k, TOP_K, EXPERTS)
        position = tl.zeros((BLOCK,), dtype=tl.int32)
        for first in range(0, count, BLOCK_J):
            others = first + tl.arange(0, BLOCK_J)
            other = load_experts(ids_ptr, others, count, stride_t, stride_k, TOP_K, EXPERTS)
            earlier = (other[None, :] == expert[:, None]) & (others[None, :] < entries[:, None])
            position += tl.sum(((other[None, :] < expert[:, None]) | earlier).to(tl.int32), 1)
        store_places(slots_ptr, tokens_ptr, positions_ptr, entries, expert, position, count, TOP_K, EXPERTS)
    else:
        experts = (tl.program_id(0) - parts) * BLOCK + tl.arange(0, BLOCK)
        end = tl.zeros((BLOCK,), dtype=tl.int32)
        for first in range(0, count, BLOCK_J):
            others = first + tl.arange(0, BLOCK_J)
            other = load_experts(ids_ptr, others, count, stride_t, stride_k, TOP_K, EXPERTS)
            end += tl.sum((other[None, :] <= experts[:, None]).to(tl.int32), 1)
        tl.store(offs_ptr + experts, end, mask=experts < EXPERTS)


@triton.jit(do_not_specialize=["tokens"])
def count_kernel(
    ids_ptr, counts_ptr, tokens, stride_t, stride_k,
    TOP_K: tl.constexpr, EXPERTS: tl.constexpr, CHUNK: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """counts[chunk, e] = entries of expert e in a chunk, int32 (chunks, EXPERTS). A program has a chunk."""
    chunk = tl.program_id(0)
    entries = chunk * CHUNK + tl.arange(0, CHUNK)
    expert = load_experts(ids_ptr, entries, tokens * TOP_K, stride_t, stride_k, TOP_K, EXPERTS)
    for first in range(0, EXPERTS, BLOCK_E):
        experts = first + tl.arange(0, BLOCK_E)
        found = tl.sum((expert[:, None] == experts[None, :]).to(tl.int32), 0)
        tl.store(counts_ptr + chunk.to(tl.int64) * EXPERTS + experts, found, mask=experts < EXPERTS)


@triton.jit(do_not_specialize=["tokens"])
def sum_counts_kernel(
    counts_ptr, tokens,
    TOP_K: tl.constexpr, EXPERTS: tl.constexpr, CHUNK: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Replace counts by the counts of all earlier chunks; one program for BLOCK_E experts. A row after the last chunk's
    gets the counts of all."""
    experts = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    chunks = tl.cdiv(tokens * TOP_K, CHUNK)
    before = tl.zeros((BLOCK_E,), dtype=tl.int32)
    for first in range(0, chunks + 1, BLOCK_C):
        each = first + tl.arange(0, BLOCK_C)
        at = counts_ptr + each.to(tl.int64)[:, None] * EXPERTS + experts[None, :]
        known = (experts < EXPERTS)[None, :]
        counts = tl.load(at, mask=(each < chunks)[:, None] & known, other=0)
        tl.store(at, before[None, :] + tl.cumsum(counts, 0) - counts, mask=(each <= chunks)[:, None] & known)
        before += tl.sum(counts, 0)


@triton.jit
def counts_before(
    counts_ptr, experts, chunk, chunks, EXPERTS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr,
    SUMMED: tl.constexpr,
):  # fmt: skip
    """The entries of experts in the chunks before ``chunk``, and in all chunks."""
    at, known = counts_ptr + experts, experts < EXPERTS
    if SUMMED:
        before = tl.load(at + chunk.to(tl.int64) * EXPERTS, mask=known, other=0)
        total = tl.load(at + chunks.to(tl.int64) * EXPERTS, mask=known, other=0)
        return before, total
    else:
        before = tl.zeros((BLOCK_C, BLOCK_E), dtype=tl.int32)
        total = tl.zeros((BLOCK_C, BLOCK_E), dtype=tl.int32)
        for first in range(0, chunks, BLOCK_C):
            each = first + tl.arange(0, BLOCK_C)[:, None]
            counts = tl.load(at[None, :] + each.to(tl.int64) * EXPERTS, mask=(each < chunks) & known[None, :], other=0)
            before += tl.where(each < chunk, counts, 0)
            total += counts
        return tl.sum(before, 0), tl.sum(total, 0)


@triton.jit(do_not_specialize=["tokens"])
def place_kernel(
    ids_ptr, counts_ptr, offs_ptr, slots_ptr, tokens_ptr, positions_ptr, tokens, stride_t, stride_k,
    TOP_K: tl.constexpr, EXPERTS: tl.constexpr, CHUNK: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_E: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    """Place a chunk's entries, which are a program's; the first program writes the ends. SUMMED: whether counts are
    those of ``sum_counts_kernel``, or of ``count_kernel``."""
    chunk, count = tl.program_id(0), tokens * TOP_K
    entries = chunk * CHUNK + tl.arange(0, CHUNK)
    expert = load_experts(ids_ptr, entries, count, stride_t, stride_k, TOP_K, EXPERTS)
    position = tl.zeros((CHUNK,), dtype=tl.int32)
    start = tl.zeros((), dtype=tl.int32)  # of the experts that follow, among all entries
    earlier = tl.zeros((), dtype=tl.int32)  # entries of experts so far, in chunks before
    for first in range(0, EXPERTS, BLOCK_E):
        experts = first + tl.arange(0, BLOCK_E)
        before, total = counts_before(
            counts_ptr, experts, chunk, tl.cdiv(count, CHUNK), EXPERTS, BLOCK_C, BLOCK_E, SUMMED
        )  # fmt: skip
        ends = start + tl.cumsum(total, 0)
        here = (expert >= first) & (expert < first + BLOCK_E)
        found = tl.gather(ends - total + before, tl.where(here, expert - first, 0), 0)
        position += tl.where(here & (expert < EXPERTS), found, 0)
        if chunk == 0:
            tl.store(offs_ptr + experts, ends, mask=experts < EXPERTS)
        start += tl.sum(total, 0)
        earlier += tl.sum(before, 0)
    position += tl.where(expert == EXPERTS, start + chunk * CHUNK - earlier, 0)
    for first in range(0, CHUNK, BLOCK_J):
        others = chunk * CHUNK + first + tl.arange(0, BLOCK_J)
        other = load_experts(ids_ptr, others, count, stride_t, stride_k, TOP_K, EXPERTS)
        sooner = (other[None, :] == expert[:, None]) & (others[None, :] < entries[:, None])
        position += tl.sum(sooner.to(tl.int32), 1)
    store_places(slots_ptr, tokens_ptr, positions_ptr, entries, expert, position, count, TOP_K, EXPERTS)
