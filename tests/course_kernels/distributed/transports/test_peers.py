"""The kernels between ranks, in Triton's interpreter: several ranks' memory in one process."""

from __future__ import annotations

import pytest
import torch

from course_kernels.distributed.plan import of_choices, sends_of, to_choices
from course_kernels.distributed.rows import total
from course_kernels.distributed.transports import peers
from course_kernels.distributed.transports.peers import Peers

RANKS, LOCAL, TOP_K, MOST = 3, 2, 4, 7
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def sends_of_rank(rank, tokens):
    generator = torch.Generator().manual_seed(rank)
    ids = torch.randint(-1, RANKS * LOCAL + 1, (tokens, TOP_K), generator=generator).to(DEVICE)
    return sends_of(ids, LOCAL, RANKS)


def memories(columns, dtype, fill):
    each = [torch.full((RANKS * MOST, columns), fill, dtype=dtype, device=DEVICE) for _ in range(RANKS)]
    addresses = torch.tensor([t.data_ptr() for t in each], dtype=torch.int64, device=DEVICE)
    return each, [Peers(addresses, rank, MOST) for rank in range(RANKS)]


def rows_at(sends, rank):
    """The tokens whose sends go to a rank."""
    ends = [0, *sends.routing.ends.tolist()]
    return slice(ends[rank], ends[rank + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [16, 21, 1040])
def test_rows_arrive_and_sums_return(dtype, columns):
    sizes = (7, 0, 4)
    sends = [sends_of_rank(rank, size) for rank, size in enumerate(sizes)]
    generator = torch.Generator().manual_seed(9)
    x = [torch.randn(size, 2 * columns, generator=generator).to(DEVICE, dtype)[:, ::2] for size in sizes]
    memory, views = memories(columns, dtype, -5.0)
    for rank in range(RANKS):
        peers.put(x[rank], sends[rank], views[rank], by_token=True)
    for rank in range(RANKS):
        for source in range(RANKS):
            there = rows_at(sends[source], rank)
            count = there.stop - there.start
            found = memory[rank][source * MOST : (source + 1) * MOST]
            assert torch.equal(found[:count], x[source][sends[source].routing.tokens[there].long()])
            assert bool((found[count:] == -5.0).all())  # rows that no token fills are not written
    for rank in range(RANKS):
        out = torch.full((sizes[rank], columns), torch.nan, dtype=dtype, device=DEVICE)
        peers.fetch_sum(out, sends[rank], views[rank])
        count = int(sends[rank].routing.ends[-1])
        rows = x[rank][sends[rank].routing.tokens[:count].long()]
        assert torch.equal(out, total(rows, sends[rank].routing, sizes[rank]))


def test_ids_fill_what_no_token_fills():
    sizes = (5, 0, 7)
    sends = [sends_of_rank(rank, size) for rank, size in enumerate(sizes)]
    memory, views = memories(TOP_K, torch.int32, 99)
    for rank in range(RANKS):
        peers.put(sends[rank].local_index, sends[rank], views[rank], by_token=False, fill=-1)
    for rank in range(RANKS):
        for source in range(RANKS):
            there = rows_at(sends[source], rank)
            count = there.stop - there.start
            found = memory[rank][source * MOST : (source + 1) * MOST]
            assert torch.equal(found[:count], sends[source].local_index[there])
            assert bool((found[count:] == -1).all())


def test_values_return_to_their_choices():
    sizes = (5, 0, 7)
    sends = [sends_of_rank(rank, size) for rank, size in enumerate(sizes)]
    memory, views = memories(TOP_K, torch.float32, torch.nan)
    weights = [torch.rand(size, TOP_K, device=DEVICE) for size in sizes]
    for rank in range(RANKS):
        peers.put(of_choices(weights[rank], sends[rank]), sends[rank], views[rank], by_token=False, fill=0)
    assert all(bool(torch.isfinite(each).all()) for each in memory)
    for rank in range(RANKS):
        sent = of_choices(weights[rank], sends[rank])
        assert torch.equal(peers.fetch(sends[rank], views[rank]), to_choices(sent, sends[rank]))
