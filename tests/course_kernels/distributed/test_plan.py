from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from course_kernels import runtime
from course_kernels.distributed import plan
from course_kernels.distributed.plan import of_choices, sends_of, to_choices

LOCAL, RANKS, TOP_K = 3, 4, 5
DEVICE = runtime.device()
KERNELS = pytest.mark.gpu if runtime.mode() == "gpu" else lambda test: test


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
        assert sends.counts[rank].tolist() == [len(mine), sum(map(len, mine))]
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
    assert sends.routing.rows.tolist() == [[0, 1, 2, -1]]
    assert sends.carriers.tolist() == [[2, 0, 1, 2, 0]]


@pytest.mark.parametrize("ranks", [1, 3, 12])
def test_any_number_of_ranks(ranks):
    ids = chosen(20)
    sends = sends_of(ids.int(), LOCAL, ranks)
    known = (ids >= 0) & (ids < ranks * LOCAL)
    assert int(sends.counts[:-1, 1].sum()) == int(known.sum())
    pairs = {(t, int(e) // LOCAL) for t, line in enumerate(ids) for e in line if 0 <= e < ranks * LOCAL}
    assert int(sends.counts[:-1, 0].sum()) == len(pairs)


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


def assert_same(found, wanted):
    """Every tensor of two results, bit for bit."""
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, tuple):
            assert_same(one, other)
        else:
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


LAYOUTS = {
    "rows": lambda ids: ids,
    "columns": lambda ids: ids.mT.contiguous().mT,
    "gaps": lambda ids: ids.repeat_interleave(2, 1)[:, ::2],
    "one token": lambda ids: ids[:1].expand(ids.shape),
}


@KERNELS
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 90), st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, 2, 3, 9, 17]),
    st.sampled_from([torch.int32, torch.int64]), st.sampled_from(list(LAYOUTS)), st.sampled_from([16, 512]),
    st.integers(0, 99),
)  # fmt: skip
def test_kernels_and_torch_make_the_same_plan(tokens, top_k, local, ranks, dtype, layout, entries, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-2, local * ranks + 3, (tokens, top_k), generator=generator).to(DEVICE, dtype)
    if tokens and dtype == torch.int64:
        ids[0, 0], ids[-1, -1] = 2**40, -(2**62)
    ids = LAYOUTS[layout](ids)
    wanted = sends_of(ids, local, ranks, backend="torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_ENTRIES", entries)
        assert_same(sends_of(ids, local, ranks, backend="triton"), wanted)
    count = int(wanted.routing.ends[-1])
    sends = wanted._replace(routing=wanted.routing.shortened(count), local_index=wanted.local_index[:count])
    weights = LAYOUTS[layout](torch.randn(tokens, top_k, generator=generator).to(DEVICE))
    values = torch.where(sends.local_index >= 0, torch.randn(count, top_k, generator=generator).to(DEVICE), torch.nan)
    for function, given_values in ((of_choices, weights), (to_choices, values), (to_choices, values.mT.clone().mT)):
        assert torch.equal(function(given_values, sends, "triton"), function(given_values, sends, "torch"))


class Operations(TorchDispatchMode):
    """The names of torch's operations that launch something."""

    FREE = ("empty", "slice", "view", "detach", "select", "new_empty")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if function.namespace == "aten" and name not in self.FREE:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def test_a_plan_takes_two_launches_beside_its_routing(monkeypatch):
    """And each exchange of weights one more. The host's time of a call is that of its launches."""
    ids, weights, launched = chosen(8), torch.rand(8, TOP_K), []
    sends = sends_of(ids, LOCAL, RANKS)
    monkeypatch.setattr(plan, "launch", lambda module, name, *_, **__: launched.append(name))
    monkeypatch.setattr(plan.Routing, "of", lambda *_, **__: sends.routing)
    with Operations() as seen:
        sends_of(ids, LOCAL, RANKS, backend="triton")
        of_choices(weights, sends, "triton")
        to_choices(weights, sends, "triton")
    assert launched == ["ranks_kernel", "sends_kernel", "pick_kernel", "pick_kernel"]
    assert not seen.names
