"""The kernels between ranks, in Triton's interpreter: several ranks' memory in one process."""

from __future__ import annotations

import pytest
import torch

from course_kernels.codegen import Build, compile_many
from course_kernels.codegen.packed import specialize
from course_kernels.distributed.plan import to_choices
from course_kernels.distributed.rows import total
from course_kernels.distributed.transports import peers
from course_kernels.distributed.transports.peers import Peers
from course_kernels.moe import Routing, launching, steps

LOCAL, TOP_K, MOST, OFFSET = 2, 4, 7, 48
SIZES = ((6,), (0, 7), (7, 0, 4), (3, 7, 0, 5))  # tokens of each rank
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class World:
    """Ranks in one process: where results of their tokens come home, and which choices have arrived at each.

    Args:
        sizes: tokens of each rank. The first token of each has two experts of the last rank, ids outside of all, and
            the second, where there is one, no expert at all.
    """

    def __init__(self, sizes):
        self.sizes, self.ranks, self.generator = sizes, len(sizes), torch.Generator().manual_seed(9)
        self.ids, self.homes = [], []
        self.arrived = torch.full((self.ranks, self.ranks * MOST, TOP_K), -1, dtype=torch.int32, device=DEVICE)
        for source, size in enumerate(sizes):
            ids = torch.randint(-1, self.ranks * LOCAL + 1, (size, TOP_K), generator=self.generator)
            ids[:1] = torch.tensor([self.ranks * LOCAL - 1, -1, self.ranks * LOCAL - 2, 2**31 - 1])
            ids[1:2] = self.ranks * LOCAL
            self.ids.append(ids.to(DEVICE))
            self.homes.append(peers.homes_of(self.ids[-1], LOCAL, self.ranks, MOST))
            for rank, arrived in enumerate(self.arrived):
                local = self.ids[-1] - rank * LOCAL
                arrived[source * MOST :][:size] = torch.where((local >= 0) & (local < LOCAL), local, -1)
        self.routings = [Routing.of(each, LOCAL) for each in self.arrived]

    def goes(self, source, rank):
        """For each row that a rank keeps for a source: whether the source sends it a token there."""
        return (self.arrived[rank][source * MOST :][:MOST] >= 0).any(1)

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
            for rank in range(self.ranks):
                rows = wanted[rank][source * MOST :][:MOST]
                expected = torch.where(self.goes(source, rank)[:, None], rows, poison)
                found = memory[source][rank * MOST :][:MOST]
                assert torch.equal(found.nan_to_num(-7.0), expected.nan_to_num(-7.0))
        assert all(bool((each == 255).all()) for each in self.before)


def close(found, wanted):
    """Check sums of a few numbers against those in float64."""
    tolerance = 4 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


def poisoned(rows, routing):
    """Rows of tokens that have arrived, with NaN where no token is."""
    filled = (routing.rows >= 0).any(1)
    return torch.where(filled[:, None], rows, torch.nan)


@pytest.mark.parametrize("sizes", SIZES)
def test_homes_are_the_rows_of_a_tokens_ranks(sizes):
    world = World(sizes)
    for ids, homes in zip(world.ids, world.homes):
        known = (ids >= 0) & (ids < world.ranks * LOCAL)
        token = torch.arange(len(ids), device=DEVICE)[:, None]
        carriers = torch.where(known, ids // LOCAL * MOST + token, -1)
        assert torch.equal(homes.carriers, carriers.int())
        for row, of_token in zip(carriers.tolist(), homes.rows.reshape(len(ids), min(TOP_K, world.ranks)).tolist()):
            wanted = sorted({each for each in row if each >= 0})
            assert of_token == wanted + [-1] * (len(of_token) - len(wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [16, 21, 1040])
@pytest.mark.parametrize("sizes", SIZES)
def test_rows_arrive(sizes, dtype, columns):
    """Each token once at each of its ranks. Other rows are not written."""
    world = World(sizes)
    x = [world.numbers(MOST, 2 * columns, dtype=dtype)[:, ::2] for _ in sizes]
    memory, views = world.memories(columns, dtype, -5.0, OFFSET)
    for size, tokens, homes, view in zip(sizes, x, world.homes, views):
        peers.put(tokens[:size], homes, view)
    for rank, found in enumerate(memory):
        rows = [torch.where(world.goes(source, rank)[:, None], tokens, -5.0) for source, tokens in enumerate(x)]
        assert torch.equal(found, torch.cat(rows))
    assert all(bool((each == 255).all()) for each in world.before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [16, 21, 600])
@pytest.mark.parametrize("sizes", SIZES)
def test_results_come_home_and_are_summed(sizes, dtype, columns):
    """A row for each token that has arrived, of any strides. Their sum is in the order of ranks."""
    world = World(sizes)
    results = [
        poisoned(world.numbers(world.ranks * MOST, 2 * columns, dtype=dtype)[:, ::2], each) for each in world.routings
    ]
    memory, views = world.memories(columns, dtype, torch.nan, OFFSET)
    for rank, view in enumerate(views):
        peers.push(results[rank].mT.contiguous().mT, world.routings[rank], view)
    world.came_home(memory, results, torch.nan)
    for source, size in enumerate(sizes):
        got = total(memory[source], world.homes[source], size)
        exact = torch.zeros(size, columns, dtype=torch.float32, device=DEVICE)
        wanted = exact.double()
        for rank, each in enumerate(results):
            rows = torch.where(world.goes(source, rank)[:, None], each[source * MOST :][:MOST], 0.0)[:size]
            exact, wanted = exact + rows.float(), wanted + rows.double()
        assert torch.equal(got, exact.to(dtype))
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
        places = routing.rows
        weights = torch.where(places >= 0, world.numbers(count, TOP_K), torch.nan) if weighted else None
        peers.push(rows, routing, view, of_experts=True, weights=weights)
        wanted.append(steps.combine(rows, routing, count, weights))
        each = torch.where((places >= 0)[..., None], rows[places.clamp(min=0).long()].double(), 0.0)
        factors = 1.0 if weights is None else weights.nan_to_num(0.0).double()[..., None]
        close(wanted[-1], (each * factors).sum(1))
    world.came_home(memory, wanted, torch.nan)


def told(world, given, ids=True, weights=True):
    """Let all ranks tell each other of their tokens. Returns the ids that arrive, and the weights, as int32 bits.
    Memory that nobody writes keeps 99."""
    memory, views = world.memories(2 * TOP_K, torch.int32, 99, OFFSET)
    for size, factors, chosen, homes, view in zip(world.sizes, given, world.ids, world.homes, views):
        after = view._replace(offset=OFFSET + 4 * world.ranks * MOST * TOP_K)
        chosen = chosen.mT.contiguous().mT if ids else None
        factors = factors[:size] if weights else None
        peers.tell(homes, LOCAL, chosen, factors, view if ids else None, after if weights else None)
    assert all(bool((each == 255).all()) for each in world.before)
    return torch.stack(memory).reshape(world.ranks, 2, world.ranks * MOST, TOP_K).unbind(1)


@pytest.mark.parametrize("sizes", SIZES)
def test_ranks_are_told_of_choices_and_of_rows_without_any(sizes):
    world = World(sizes)
    given = [world.numbers(MOST, 2 * TOP_K)[:, ::2] for _ in sizes]
    of_choices = torch.where(world.arrived >= 0, torch.cat(given), 0.0).view(torch.int32)
    nothing = torch.full_like(of_choices, 99)
    for alone in ({}, dict(weights=False), dict(ids=False)):
        ids, weights = told(world, given, **alone)
        assert torch.equal(ids, world.arrived if alone.get("ids", True) else nothing)
        assert torch.equal(weights, of_choices if alone.get("weights", True) else nothing)


@pytest.mark.parametrize("sizes", SIZES)
def test_values_return_to_their_choices(sizes):
    world = World(sizes)
    values = [torch.where(each >= 0, world.numbers(*each.shape), torch.nan) for each in world.arrived]
    home, views = world.memories(TOP_K, torch.float32, torch.nan, OFFSET)
    for rows, routing, view in zip(values, world.routings, views):
        peers.push(rows, routing, view)
    for source, (ids, homes) in enumerate(zip(world.ids, world.homes)):
        found = to_choices(home[source], homes)
        wanted = torch.zeros_like(found)
        for rank, rows in enumerate(values):
            wanted = torch.where(ids // LOCAL == rank, rows[source * MOST :][: len(ids)], wanted)
        assert torch.equal(found, torch.where((ids >= 0) & (ids < world.ranks * LOCAL), wanted, 0.0))


@pytest.mark.parametrize("tile", [1, 2, 4, 64])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("divided", [0, 1, LOCAL])
def test_rows_of_a_tile_wait_for_the_last_of_their_ranks(sizes, tile, divided, monkeypatch):
    monkeypatch.setattr(peers, "_TILE", tile)
    world, arrived = World(sizes), torch.ones(1, dtype=torch.int32, device=DEVICE)
    _, views = world.memories(4, torch.float32, 0)
    for routing, view in zip(world.routings, views):
        starts, ends, *rest = peers.pieces_of(routing, view, TOP_K, arrived, 7, divided)
        assert rest[0] is arrived
        assert rest[1] == 7
        found = {}
        for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist())):
            for row in range(start, end):
                assert row not in found, "two pieces have a row"
                found[row] = divmod(number, LOCAL)
        wanted, first = {}, 0
        steps = (view.here - routing.choices // (MOST * TOP_K)) % world.ranks
        for expert, last in enumerate(routing.ends.tolist()):
            for begin in range(first, last, tile):
                rows = range(begin, min(begin + tile, last))
                step = int(steps[begin : rows[-1] + 1].max()) if expert < divided else world.ranks - 1
                wanted |= dict.fromkeys(rows, (step, expert))
            first = last
        assert found == wanted


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
    ids, homes, routing = world.ids[0], world.homes[0], world.routings[0]
    memory, views = world.memories(2048, torch.bfloat16, 0)
    monkeypatch.setattr(launching, "_interpret", note)
    for view in views[:2]:  # Triton makes a constant of an argument that is 1
        weights = torch.rand(4 * MOST, TOP_K)
        peers.put(memory[0][: len(ids)], homes, view)
        for given in ((ids, weights[: len(ids)]), (ids.int(), None), (None, weights[: len(ids)])):
            peers.tell(homes, LOCAL, *given, *(None if each is None else view for each in given))
        peers.push(memory[0], routing, view)
        for factors in (weights, None):
            peers.push(memory[0], routing, view, of_experts=True, weights=factors)
        peers.homes_of(ids, LOCAL, world.ranks, 1 if view.here else MOST)
        peers.pieces_of(routing, view, TOP_K, ids, 1, 2)
    names = {"put_kernel", "push_kernel", "homes_kernel", "tell_kernel", "pieces_kernel"}
    assert {name for name, _ in builds} == names
    compiled = compile_many([(each, "sm_90") for each in builds.values()], workers=2)
    assert {str(build): each.spills.bytes for build, each in zip(builds.values(), compiled) if each.spills.bytes} == {}
    for (name, _), each in zip(builds, compiled):
        if name in ("push_kernel", "put_kernel"):
            assert "st.global.v4" in each.asm["ptx"], name
