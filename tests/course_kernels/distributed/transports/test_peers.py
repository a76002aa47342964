"""The kernels between ranks, in Triton's interpreter: several ranks' memory in one process."""

from __future__ import annotations

import pytest
import torch

from course_kernels.codegen import Build, compile_many
from course_kernels.codegen.packed import specialize
from course_kernels.distributed.plan import of_choices, sends_of, to_choices
from course_kernels.distributed.rows import total
from course_kernels.distributed.transports import peers
from course_kernels.distributed.transports.peers import Peers
from course_kernels.moe import Routing, launching, steps

LOCAL, TOP_K, MOST, OFFSET = 2, 4, 7, 48
SIZES = ((6,), (0, 7), (7, 0, 4), (3, 7, 0, 5))  # tokens of each rank
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class World:
    """Ranks in one process: their sends, and what has arrived at each.

    Args:
        sizes: tokens of each rank. The first token of each has two experts of the last rank, ids outside of all, and
            the second, where there is one, no expert at all.
    """

    def __init__(self, sizes):
        self.sizes, self.ranks, self.generator = sizes, len(sizes), torch.Generator().manual_seed(9)
        self.sends = []
        for size in sizes:
            ids = torch.randint(-1, self.ranks * LOCAL + 1, (size, TOP_K), generator=self.generator)
            ids[:1] = torch.tensor([self.ranks * LOCAL - 1, -1, self.ranks * LOCAL - 2, 2**31 - 1])
            ids[1:2] = self.ranks * LOCAL
            self.sends.append(sends_of(ids.to(DEVICE), LOCAL, self.ranks))
        self.arrived = []
        for rank in range(self.ranks):
            local = torch.full((self.ranks * MOST, TOP_K), -1, dtype=torch.int32, device=DEVICE)
            for source, sends in enumerate(self.sends):
                there = self.rows_at(source, rank)
                local[source * MOST :][: there.stop - there.start] = sends.local_index[there]
            self.arrived.append(local)
        self.routings = [Routing.of(each, LOCAL) for each in self.arrived]

    def rows_at(self, source, rank):
        """The sends of a source to a rank."""
        ends = [0, *self.sends[source].routing.ends.tolist()]
        return slice(ends[rank], ends[rank + 1])

    def memories(self, columns, dtype, fill, offset=0):
        """Rows of each rank's memory, ``offset`` bytes after its beginning, and each rank's view of all."""
        size = self.ranks * MOST * columns * dtype.itemsize
        whole = [torch.full((offset + size,), 255, dtype=torch.uint8, device=DEVICE) for _ in range(self.ranks)]
        rows = [each[offset:].view(dtype).reshape(self.ranks * MOST, columns).fill_(fill) for each in whole]
        addresses = torch.tensor([each.data_ptr() for each in whole], dtype=torch.int64, device=DEVICE)
        self.before = [each[:offset] for each in whole]
        return rows, [Peers(addresses, rank, MOST, offset) for rank in range(self.ranks)]

    def numbers(self, *shape, dtype=torch.float32):
        return torch.randn(*shape, generator=self.generator).to(DEVICE, dtype)

    def came_home(self, memory, wanted, poison):
        """Check each rank's memory: of each source's tokens what ``wanted`` has at the rank they went to; and poison in
        all other rows, and before them."""
        for source in range(self.ranks):
            expected = torch.full_like(memory[source], poison)
            for rank in range(self.ranks):
                there = self.rows_at(source, rank)
                count = there.stop - there.start
                expected[rank * MOST :][:count] = wanted[rank][source * MOST :][:count]
            assert torch.equal(memory[source].nan_to_num(-7.0), expected.nan_to_num(-7.0))
        assert all(bool((each == 255).all()) for each in self.before)


def close(found, wanted):
    """Check sums of a few numbers against those in float64."""
    tolerance = 4 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


def poisoned(rows, routing):
    """Rows of tokens that have arrived, with NaN where no token is."""
    filled = (routing.rows.reshape(rows.shape[0], -1) >= 0).any(1)
    return torch.where(filled[:, None], rows, torch.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [16, 21, 1040])
@pytest.mark.parametrize("sizes", SIZES)
def test_rows_arrive(sizes, dtype, columns):
    world = World(sizes)
    x = [world.numbers(size, 2 * columns, dtype=dtype)[:, ::2] for size in sizes]
    memory, views = world.memories(columns, dtype, -5.0, OFFSET)
    for rank, view in enumerate(views):
        peers.put(x[rank], world.sends[rank], view, by_token=True)
    for rank in range(world.ranks):
        expected = torch.full_like(memory[rank], -5.0)  # rows that no token fills are not written
        for source, sends in enumerate(world.sends):
            there = world.rows_at(source, rank)
            expected[source * MOST :][: there.stop - there.start] = x[source][sends.routing.tokens[there].long()]
        assert torch.equal(memory[rank], expected)
    assert all(bool((each == 255).all()) for each in world.before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [16, 21, 600])
@pytest.mark.parametrize("sizes", SIZES)
def test_results_come_home_and_are_summed(sizes, dtype, columns):
    """A row for each token that has arrived, of any strides. Their sum is that of rows which ``all_to_all`` returns in
    the order of sends, bit for bit."""
    world = World(sizes)
    results = [
        poisoned(world.numbers(world.ranks * MOST, 2 * columns, dtype=dtype)[:, ::2], each) for each in world.routings
    ]
    memory, views = world.memories(columns, dtype, torch.nan, OFFSET)
    for rank, view in enumerate(views):
        peers.push(results[rank].mT.contiguous().mT, world.routings[rank], view)
    world.came_home(memory, results, torch.nan)
    for source, size in enumerate(sizes):
        sends = world.sends[source]
        rows = torch.cat(
            [
                results[rank][source * MOST :][: there.stop - there.start]
                for rank in range(world.ranks)
                for there in [world.rows_at(source, rank)]
            ]
        )
        got = total(memory[source], peers.returning(sends, MOST).routing, size)
        assert torch.equal(got, total(rows, sends.routing, size))
        wanted = torch.zeros(size, columns, dtype=torch.float64, device=DEVICE)
        wanted.index_add_(0, sends.routing.tokens[: rows.shape[0]].long(), rows.double())
        close(got, wanted)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [16, 21, 600])
@pytest.mark.parametrize("sizes", SIZES)
def test_rows_of_experts_are_summed_on_their_way_home(sizes, dtype, columns, weighted):
    """The same bits as ``steps.combine`` before a push of rows."""
    world = World(sizes)
    memory, views = world.memories(columns, dtype, torch.nan, OFFSET)
    wanted = []
    for routing, view in zip(world.routings, views):
        count = world.ranks * MOST
        rows = world.numbers(count * TOP_K, columns, dtype=dtype)
        rows[routing.ends[-1] :] = torch.nan  # no expert has written these
        places = routing.rows.reshape(count, TOP_K)
        weights = torch.where(places >= 0, world.numbers(count, TOP_K), torch.nan) if weighted else None
        peers.push(rows, routing, view, of_experts=True, weights=weights)
        wanted.append(steps.combine(rows, routing, count, weights))
        each = torch.where((places >= 0)[..., None], rows[places.clamp(min=0).long()].double(), 0.0)
        factors = 1.0 if weights is None else weights.nan_to_num(0.0).double()[..., None]
        close(wanted[-1], (each * factors).sum(1))
    world.came_home(memory, wanted, torch.nan)


@pytest.mark.parametrize("sizes", SIZES)
def test_ids_fill_what_no_token_fills(sizes):
    world = World(sizes)
    memory, views = world.memories(TOP_K, torch.int32, 99)
    for sends, view in zip(world.sends, views):
        peers.put(sends.local_index, sends, view, by_token=False, fill=-1)
    assert all(map(torch.equal, memory, world.arrived))


@pytest.mark.parametrize("sizes", SIZES)
def test_values_return_to_their_choices(sizes):
    world = World(sizes)
    weights = [torch.rand(size, TOP_K, device=DEVICE) for size in sizes]
    memory, views = world.memories(TOP_K, torch.float32, torch.nan, OFFSET)
    for rank, (sends, view) in enumerate(zip(world.sends, views)):
        peers.put(of_choices(weights[rank], sends), sends, view, by_token=False, fill=0)
    assert all(bool(torch.isfinite(each).all()) for each in memory)
    home, views = world.memories(TOP_K, torch.float32, torch.nan, OFFSET)
    for arrived, routing, view in zip(memory, world.routings, views):
        peers.push(arrived, routing, view)
    for rank, sends in enumerate(world.sends):
        wanted = to_choices(of_choices(weights[rank], sends), sends)
        assert torch.equal(to_choices(home[rank], peers.returning(sends, MOST)), wanted)


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU they run")
def test_what_is_interpreted_compiles_for_hopper_without_spills(monkeypatch):
    """With numbers of a layer: 4 ranks, 2,048 columns, 16 bits."""
    builds = {}

    def note(module, name, programs, tokens, arguments, tensors):
        given = launching._with_tokens(arguments, tokens)
        signature, constants, divisible = specialize(launching._kernel(module, name), given)
        builds[name, f"{signature} {constants}"] = Build(
            f"course_kernels.kernels.{module}:{name}", signature, constants, divisible
        )

    world = World(SIZES[-1])
    sends, routing = world.sends[0], world.routings[0]
    memory, views = world.memories(2048, torch.bfloat16, 0)
    monkeypatch.setattr(launching, "_interpret", note)
    for view in views[:2]:  # Triton makes a constant of an argument that is 1
        peers.put(memory[0], sends, view, by_token=True)
        peers.put(torch.rand(3, TOP_K), sends, view, by_token=False, fill=0)
        peers.put(sends.local_index, sends, view, by_token=False, fill=-1)
        peers.push(memory[0], routing, view)
        for weights in (torch.rand(4 * MOST, TOP_K), None):
            peers.push(memory[0], routing, view, of_experts=True, weights=weights)
        peers.returning(sends, 1 if view.here else MOST)
    assert {name for name, _ in builds} == {"put_kernel", "push_kernel", "homes_kernel"}
    compiled = compile_many([(each, "sm_90") for each in builds.values()], workers=2)
    assert {str(build): each.spills.bytes for build, each in zip(builds.values(), compiled) if each.spills.bytes} == {}
    for (name, constants), each in zip(builds, compiled):
        if name == "push_kernel" or "'FILL': None" in constants:
            assert "st.global.v4" in each.asm["ptx"], name
