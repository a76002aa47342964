"""Tile orders, the simulator and the traffic model, against closed forms and a table worked out by hand."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_kernels.schedule import (
    ORDERS,
    STATIC_ORDERS,
    CostModel,
    Timeline,
    bytes_moved,
    one_launch_per_problem,
    simulate,
    tile_counts,
    tiles,
    walk,
)

# Times in whole microseconds: a 1 x 1 x 1 step takes 1, everything else is free.
UNIT = CostModel(tflops_per_program=2e-6, load_gb_per_s=1e9, store_gb_per_s=1e9, startup_us=0, atomic_us=0, launch_us=0)

problem = st.tuples(st.integers(0, 90), st.integers(0, 90), st.integers(0, 200))
problem_lists = st.lists(problem, max_size=6)
blocks = st.tuples(st.sampled_from([16, 32]), st.sampled_from([16, 32]), st.sampled_from([16, 64]))
programs_counts = st.integers(1, 40)
orders = st.sampled_from(sorted(ORDERS))
short = settings(max_examples=60, deadline=None)


# --- tiles ---


def test_tile_counts_rounds_up_and_keeps_k_of_zero():
    assert tile_counts([(128, 256, 64), (129, 256, 64), (0, 5, 7), (5, 0, 7), (5, 5, 0)], 128, 256) == [
        1,
        2,
        0,
        0,
        1,
    ]
    assert tile_counts([], 16, 16) == []


def test_tiles_row_major_with_boundary_extents():
    found = tiles([(3, 0, 9), (3, 5, 7)], 2, 2)
    assert [(t.problem, t.m, t.n, t.rows, t.cols, t.k, t.index) for t in found] == [
        (1, 0, 0, 2, 2, 7, 0),
        (1, 0, 1, 2, 2, 7, 1),
        (1, 0, 2, 2, 1, 7, 2),
        (1, 1, 0, 1, 2, 7, 3),
        (1, 1, 1, 1, 2, 7, 4),
        (1, 1, 2, 1, 1, 7, 5),
    ]


def test_strips_are_walked_by_column_and_the_last_one_is_short():
    # Five tile rows in strips of two: two full strips, then one of a single row.
    found = tiles([(5, 3, 1)], 1, 1, group_m=2)
    assert [(t.m, t.n) for t in found] == [
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2),
        (2, 0), (3, 0), (2, 1), (3, 1), (2, 2), (3, 2),
        (4, 0), (4, 1), (4, 2),
    ]  # fmt: skip


def test_strip_higher_than_the_problem_is_column_major():
    assert [(t.m, t.n) for t in tiles([(2, 3, 1)], 1, 1, group_m=8)] == [
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2),
    ]  # fmt: skip


@short
@given(problem_lists, blocks, st.integers(1, 9))
def test_tiles_cover_every_output_element_once(problems, block, group_m):
    found = tiles(problems, block[0], block[1], group_m)
    assert [t.index for t in found] == list(range(sum(tile_counts(problems, block[0], block[1]))))
    assert [t.problem for t in found] == sorted(t.problem for t in found)
    for position, (m, n, k) in enumerate(problems):
        own = [t for t in found if t.problem == position]
        assert len({(t.m, t.n) for t in own}) == len(own)
        assert sum(t.rows * t.cols for t in own) == m * n
        for t in own:
            assert 0 <= t.m * block[0]
            assert t.m * block[0] + t.rows <= m
            assert 1 <= t.rows <= block[0]
            assert 0 <= t.n * block[1]
            assert t.n * block[1] + t.cols <= n
            assert 1 <= t.cols <= block[1]
            assert t.k == k


# --- walk ---


def test_three_problems_on_four_programs_by_hand():
    # 2 x 2, 1 x 3 and 2 x 1 tiles of 16 x 16: nine tiles, numbered 0-3, 4-6 and 7-8.
    problems = [(32, 32, 16), (16, 48, 16), (20, 10, 16)]
    by_hand = [
        [(0, 0, 0), (1, 0, 0), (2, 1, 0)],
        [(0, 0, 1), (1, 0, 1)],
        [(0, 1, 0), (1, 0, 2)],
        [(0, 1, 1), (2, 0, 0)],
    ]
    dealt = walk(problems, "round_robin", 4, (16, 16))
    assert [[(t.problem, t.m, t.n) for t in line] for line in dealt] == by_hand
    assert [[t.index for t in line] for line in walk(problems, "chunks", 4, (16, 16))] == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [],
    ]  # fmt: skip
    swizzled = walk(problems, "swizzled", 4, (16, 16), group_m=2)
    assert [(t.problem, t.m, t.n) for t in swizzled[1]] == [(0, 1, 0), (1, 0, 1)]


def test_group_m_applies_to_every_order():
    problems = [(64, 64, 16)]
    assert walk(problems, "swizzled", 3, (16, 16), 2) == walk(problems, "round_robin", 3, (16, 16), 2)
    assert walk(problems, "swizzled", 3, (16, 16), 1) == walk(problems, "round_robin", 3, (16, 16))
    assert walk(problems, "swizzled", 3, (16, 16)) == walk(problems, "swizzled", 3, (16, 16), 8)
    assert walk(problems, "swizzled", 3, (16, 16)) != walk(problems, "round_robin", 3, (16, 16))


@short
@given(problem_lists, st.sampled_from(STATIC_ORDERS), programs_counts, blocks, st.integers(1, 4))
def test_walk_is_what_simulate_runs(problems, order, programs, block, group_m):
    dealt = walk(problems, order, programs, block, group_m)
    timeline = simulate(problems, order, programs, block, UNIT, group_m)
    assert [[span.tile for span in line] for line in timeline.programs] == dealt
    total = sum(map(len, dealt))
    most = max(map(len, dealt))
    assert most == -(-total // programs) == timeline.waves


# --- simulate ---


@short
@given(problem_lists, orders, programs_counts, blocks)
def test_every_order_runs_every_tile_once_and_respects_the_bounds(problems, order, programs, block):
    timeline = simulate(problems, order, programs, block)
    ran = sorted(span.tile.index for line in timeline.programs for span in line)
    assert ran == list(range(sum(tile_counts(problems, block[0], block[1]))))
    assert len(timeline.programs) == programs
    assert timeline.tile_count == len(ran)
    for line in timeline.programs:
        assert all(a.end <= b.start for a, b in itertools.pairwise(line))
        assert all(0 <= span.start < span.end for span in line)
    slack = 1e-9 * (1 + timeline.makespan)
    assert timeline.makespan >= max(timeline.lower_bounds) - slack
    assert 0 < timeline.utilisation <= 1 + 1e-9
    assert timeline.imbalance >= 1 - 1e-9
    assert 0 <= timeline.tail_us <= timeline.makespan
    assert -1e-9 <= timeline.tail_share < 1
    assert timeline == simulate(problems, order, programs, block)


@short
@given(problem_lists, programs_counts, blocks, st.sampled_from([0.0, 0.7]))
def test_list_schedules_stay_within_grahams_bound(problems, programs, block, atomic_us):
    cost = CostModel(atomic_us=atomic_us)
    for order, fetch_us in (("dynamic", atomic_us), ("largest_first", 0.0)):
        timeline = simulate(problems, order, programs, block, cost)
        work = timeline.lower_bounds.work + fetch_us * timeline.tile_count / programs
        longest = timeline.lower_bounds.longest + (fetch_us if timeline.tile_count else 0.0)
        bound = work + longest * (1 - 1 / programs)
        assert timeline.makespan <= bound * (1 + 1e-9)
        assert timeline.makespan <= 2 * max(work, longest) * (1 + 1e-9)


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize(("programs", "waves"), [(1, 30), (7, 5), (10, 3), (29, 2), (30, 1), (31, 1)])
def test_equal_tiles_take_whole_waves(order, programs, waves):
    # 5 x 6 tiles of 4 microseconds each.
    timeline = simulate([(5, 6, 4)], order, programs, (1, 1, 1), UNIT)
    assert timeline.makespan == pytest.approx(4 * waves)
    assert timeline.waves == waves
    assert timeline.utilisation == pytest.approx(30 / (waves * programs))
    assert timeline.wave_quantisation == pytest.approx(timeline.utilisation)
    assert timeline.lower_bounds == pytest.approx((4 * 30 / programs, 4))
    assert timeline.imbalance == pytest.approx(waves * programs / 30)


def test_dynamic_pays_for_each_fetch():
    cost = CostModel(
        tflops_per_program=2e-6,
        load_gb_per_s=1e9,
        store_gb_per_s=1e9,
        startup_us=0,
        atomic_us=0.5,
        launch_us=0,
    )
    timeline = simulate([(1, 5, 4)], "dynamic", 2, (1, 1, 1), cost)
    assert timeline.makespan == pytest.approx(3 * 4.5)
    assert timeline.programs[1][1][1:] == pytest.approx((5.0, 9.0))
    assert sum(timeline.busy) == pytest.approx(20)
    assert timeline.utilisation == pytest.approx(20 / (2 * 13.5))


def test_unequal_tiles_by_hand():
    # Costs 5, 1, 1, 1, 4 on two programs.
    problems = [(1, 1, 5), (1, 3, 1), (1, 1, 4)]

    def spans(order):
        timeline = simulate(problems, order, 2, (1, 1, 1), UNIT)
        return [[(s.tile.index, round(s.start, 3), round(s.end, 3)) for s in line] for line in timeline.programs]

    assert spans("round_robin") == [[(0, 0, 5), (2, 5, 6), (4, 6, 10)], [(1, 0, 1), (3, 1, 2)]]
    assert spans("chunks") == [[(0, 0, 5), (1, 5, 6), (2, 6, 7)], [(3, 0, 1), (4, 1, 5)]]
    assert spans("dynamic") == [[(0, 0, 5)], [(1, 0, 1), (2, 1, 2), (3, 2, 3), (4, 3, 7)]]
    assert spans("largest_first") == [[(0, 0, 5), (2, 5, 6)], [(4, 0, 4), (1, 4, 5), (3, 5, 6)]]
    tail = simulate(problems, "dynamic", 2, (1, 1, 1), UNIT)
    assert (tail.tail_us, tail.makespan) == pytest.approx((2, 7))
    assert tail.tail_share == pytest.approx(2 / 14)
    assert tail.finish == pytest.approx([5, 7])


def test_one_launch_per_problem_waits_between_kernels():
    cost = CostModel(
        tflops_per_program=2e-6, load_gb_per_s=1e9, store_gb_per_s=1e9, startup_us=0, atomic_us=9, launch_us=3
    )
    # Three tiles of 2, nothing, one tile of 5, on two programs: 0-4, gap of 3, 7-12.
    timeline = one_launch_per_problem([(1, 3, 2), (0, 4, 2), (1, 1, 5)], 2, (1, 1, 1), cost)
    assert [pytest.approx(kernel) for kernel in timeline.kernels] == [(0, 4), (7, 12)]
    assert timeline.makespan == pytest.approx(12)
    assert timeline.utilisation == pytest.approx(11 / 24)
    ran = sorted(span.tile.index for line in timeline.programs for span in line)
    assert ran == [0, 1, 2, 3]


@pytest.mark.parametrize("problems", [[], [(0, 8, 8), (8, 0, 8)]])
def test_nothing_to_do(problems):
    for timeline in [
        *(simulate(problems, order, 3) for order in ORDERS),
        one_launch_per_problem(problems, 3),
    ]:
        assert timeline.programs == [[], [], []]
        assert timeline.kernels == []
        assert (timeline.makespan, timeline.tail_us, timeline.tail_share, timeline.waves) == (0, 0, 0, 0)
        assert (timeline.utilisation, timeline.wave_quantisation, timeline.imbalance) == (1, 1, 1)
        assert bytes_moved(timeline) == (0, 0, 0, 0)
        assert bytes_moved(timeline).hit_rate == 1


def test_k_of_zero_still_costs_start_and_store():
    cost = CostModel()
    timeline = simulate([(128, 256, 0)], "round_robin", 1)
    assert timeline.makespan == pytest.approx(cost.startup_us + cost.epilogue_us())
    assert bytes_moved(timeline) == (0, 0, 0, 128 * 256 * 2)


def test_cost_model_defaults_reproduce_their_sources():
    cost = CostModel()
    assert cost.k_step_us((128, 256, 64)) == pytest.approx(2 * 128 * 256 * 64 / (660e12 / 132) * 1e6)
    assert cost.epilogue_us((128, 256, 64)) == pytest.approx(128 * 256 * 2 / (4.27e12 / 132) * 1e6, rel=0.02)
    # A small block is limited by its operand loads: 64 x 64 has half the reuse per byte of 128 x 128.
    assert cost.k_step_us((64, 64, 64)) == pytest.approx(128 * 64 * 2 / 112e3)
    assert cost.tile_us(65) == pytest.approx(1 + 2 * cost.k_step_us() + cost.epilogue_us())


# --- bytes_moved ---


def test_traffic_by_hand():
    # Two tile rows, two tile columns, K of one slab; both operands 2 x 8 and 8 x 2 in 2-byte elements.
    timeline = simulate([(2, 2, 8)], "round_robin", 1, (1, 1, 8), UNIT)
    panel = 8 * 2
    # Order: (0,0) (0,1) (1,0) (1,1); every tile asks for A[m], then B[n].
    assert bytes_moved(timeline, k_slab=8) == (8 * panel, 4 * panel, 4 * panel, 4 * 2)
    assert bytes_moved(timeline, l2_bytes=0, k_slab=8) == (8 * panel, 8 * panel, 4 * panel, 4 * 2)
    # Room for two panels: A0 B0 | A0 hits, B1 | A1, B0 miss | A1 hits, B1 misses.
    assert bytes_moved(timeline, l2_bytes=2 * panel, k_slab=8).from_memory == 6 * panel
    # Room for three: A0 B0 | A0 hits, B1 | A1 drops B0, B0 drops A0 | A1 hits, B1 hits.
    assert bytes_moved(timeline, l2_bytes=3 * panel, k_slab=8).from_memory == 5 * panel


def test_tiles_that_run_together_share():
    # One tile row, four columns, at once: the row panel of A is read once even by a cache of five pieces.
    timeline = simulate([(1, 4, 64)], "round_robin", 4, (1, 1, 8), UNIT)
    moved = bytes_moved(timeline, l2_bytes=5 * 8 * 2, k_slab=8)
    assert moved.from_memory == moved.compulsory == 5 * 64 * 2
    assert moved.requested == 8 * 64 * 2
    assert moved.hit_rate == pytest.approx(3 / 8)


@short
@given(problem_lists, orders, programs_counts, blocks, st.integers(0, 20_000))
def test_traffic_lies_between_once_and_always(problems, order, programs, block, l2_bytes):
    timeline = simulate(problems, order, programs, block)
    moved = bytes_moved(timeline, l2_bytes=l2_bytes, k_slab=16)
    assert moved.compulsory <= moved.from_memory <= moved.requested
    needed = [(m, n, k) for m, n, k in problems if m and n]
    assert moved.compulsory == 2 * sum((m + n) * k for m, n, k in needed)
    assert moved.written == 2 * sum(m * n for m, n, _ in needed)
    assert bytes_moved(timeline, l2_bytes=10**9).from_memory == moved.compulsory
    assert bytes_moved(timeline, l2_bytes=0).from_memory == moved.requested


def test_strips_read_less_than_rows():
    problems = [(8192, 8192, 2048)]
    rows = bytes_moved(simulate(problems, "round_robin"), l2_bytes=25 * 2**20)
    strips = bytes_moved(simulate(problems, "swizzled"), l2_bytes=25 * 2**20)
    assert rows.requested == strips.requested
    assert strips.from_memory < 0.7 * rows.from_memory


# --- speed and errors ---


def test_five_thousand_tiles_are_quick():
    problems = [(4096, 4096, 2048)] * 10

    def seconds(function, *arguments):
        """The best of three, since other processes share the machine."""
        took = []
        for _ in range(3):
            start = time.process_time()
            result = function(*arguments)
            took.append(time.process_time() - start)
        return min(took), result

    for order in ORDERS:
        took, timeline = seconds(simulate, problems, order)
        assert timeline.tile_count == 5120
        assert took < 0.5, f"{order} took {took:.2f} s"
    took, _ = seconds(bytes_moved, timeline)
    assert took < 0.5


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tiles([(1, 2)], 16, 16), TypeError, r"problems\[0\] is \(1, 2\); want three integers"),
        (lambda: tiles([(1, 2, 3), 5], 16, 16), TypeError, r"problems\[1\] is 5"),
        (lambda: tiles([(1, 2, 3.0)], 16, 16), TypeError, r"problems\[0\]"),
        (lambda: tile_counts([(1, 2, 3), (4, -1, 2)], 16, 16), ValueError, r"problems\[1\] is \(4, -1, 2\)"),
        (lambda: tile_counts([], 0, 16), ValueError, "block_m is 0; want at least 1"),
        (lambda: tile_counts([], 16, 1.5), TypeError, "block_n is 1.5; want a positive integer"),
        (lambda: tiles([], 16, 16, 0), ValueError, "group_m is 0"),
        (lambda: walk([], "round_robin", 0), ValueError, "programs is 0"),
        (lambda: walk([], "spiral"), ValueError, "order is 'spiral'; want one of 'round_robin', 'chunks'"),
        (lambda: walk([], "dynamic"), ValueError, r"order is 'dynamic'.*use simulate\(\)"),
        (lambda: walk([], "chunks", 4, (16,)), TypeError, r"block is \(16,\)"),
        (lambda: walk([], "chunks", 4, 16), TypeError, "block is 16"),
        (lambda: simulate([], "lifo"), ValueError, "'largest_first'"),
        (lambda: simulate([], "chunks", 4, (16, 16)), ValueError, "want .*BLOCK_K"),
        (lambda: simulate([], "chunks", 4, (16, 16, -4)), ValueError, r"block\[2\] is -4"),
        (lambda: simulate([], cost=3.0), TypeError, "cost is a float; want a CostModel"),
        (lambda: one_launch_per_problem([(1, 1, -1)]), ValueError, r"problems\[0\]"),
        (lambda: CostModel(tflops_per_program=0), ValueError, "tflops_per_program is 0; want more than 0"),
        (lambda: CostModel(atomic_us=-1), ValueError, "atomic_us is -1; want at least 0"),
        (lambda: CostModel(startup_us=float("nan")), ValueError, "startup_us is nan"),
        (lambda: bytes_moved([]), TypeError, "timeline is a list; want a Timeline"),
        (lambda: bytes_moved(simulate([]), l2_bytes=-1), ValueError, "l2_bytes is -1"),
        (lambda: bytes_moved(simulate([]), l2_bytes="50 MB"), TypeError, "l2_bytes is '50 MB'"),
        (lambda: bytes_moved(simulate([]), k_slab=0), ValueError, "k_slab is 0"),
    ],
)
def test_bad_input_says_what_it_wants(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_timeline_remembers_what_it_was_asked():
    timeline = simulate(iter([(16, 16, 16)]), "chunks", 2, [16, 16, 16])
    assert isinstance(timeline, Timeline)
    assert (timeline.order, timeline.problems, timeline.block) == ("chunks", [(16, 16, 16)], (16, 16, 16))
    assert timeline.cost == CostModel()
    assert timeline.kernels == [(0.0, timeline.makespan)]
