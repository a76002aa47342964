from __future__ import annotations

import pytest
import torch

from course_kernels.distributed.plan import counts_of, of_choices, sends_of, to_choices

LOCAL, RANKS, TOP_K = 3, 4, 5


def chosen(tokens, seed=0):
    """Ids with repetitions, and some that are no expert."""
    return torch.randint(-2, LOCAL * RANKS + 3, (tokens, TOP_K), generator=torch.Generator().manual_seed(seed))


def journeys(ids):
    """(rank, token, choices) of every send, by plain loops, in order."""
    found = []
    for rank in range(RANKS):
        for token, line in enumerate(ids.tolist()):
            choices = [j for j, each in enumerate(line) if each // LOCAL == rank]
            if choices:
                found.append((rank, token, choices))
    return found


@pytest.mark.parametrize("tokens", [0, 1, 7, 40])
def test_sends_are_those_of_plain_loops(tokens):
    ids = chosen(tokens)
    sends, wanted = sends_of(ids, LOCAL, RANKS), journeys(ids)
    count = len(wanted)
    assert sends.routing.ends.tolist()[-1] == count
    assert sends.routing.tokens[:count].tolist() == [token for _, token, _ in wanted]
    for rank in range(RANKS):
        mine = [choices for r, _, choices in wanted if r == rank]
        assert counts_of(sends)[rank].tolist() == [len(mine), sum(map(len, mine))]
    carriers = torch.full((tokens, TOP_K), -1)
    local = torch.full((count, TOP_K), -1)
    for send, (rank, token, choices) in enumerate(wanted):
        for j in choices:
            carriers[token, j] = send
            local[send, j] = ids[token, j] - rank * LOCAL
    assert torch.equal(sends.carriers.long(), carriers)
    assert torch.equal(sends.local_index[:count].long(), local)
    assert bool((sends.local_index[count:] == -1).all())


def test_a_token_has_its_sends_in_the_order_of_ranks():
    sends = sends_of(torch.tensor([[11, 0, 4, 10, 1]]), LOCAL, RANKS)
    assert sends.routing.rows.tolist() == [0, 1, 2, -1, -1]
    assert sends.carriers.tolist() == [[2, 0, 1, 2, 0]]


@pytest.mark.parametrize("ranks", [1, 3, 12])
def test_any_number_of_ranks(ranks):
    ids = chosen(20)
    sends = sends_of(ids.int(), LOCAL, ranks)
    known = (ids >= 0) & (ids < ranks * LOCAL)
    assert int(counts_of(sends)[:, 1].sum()) == int(known.sum())
    pairs = {(t, int(e) // LOCAL) for t, line in enumerate(ids) for e in line if 0 <= e < ranks * LOCAL}
    assert int(counts_of(sends)[:, 0].sum()) == len(pairs)


def test_weights_go_and_values_return_to_their_choices():
    ids = chosen(9)
    sends = sends_of(ids, LOCAL, RANKS)
    count = int(sends.routing.ends[-1])
    sends = sends._replace(routing=sends.routing.shortened(count), local_index=sends.local_index[:count])
    weights = torch.rand(9, TOP_K)
    sent = of_choices(weights, sends)
    known = (ids >= 0) & (ids < LOCAL * RANKS)
    assert torch.equal(sent != 0, sends.local_index >= 0)
    assert torch.equal(to_choices(sent, sends), torch.where(known, weights, 0.0))
    # Whatever a send says about choices of other ranks is not read, NaN neither.
    assert torch.equal(
        to_choices(torch.where(sends.local_index >= 0, sent, torch.nan), sends), torch.where(known, weights, 0.0)
    )
