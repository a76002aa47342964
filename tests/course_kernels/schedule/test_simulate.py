"""The simulation of a launch: every tile once, by hand, and within Graham's bound."""

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


@short
@given(problem_lists, st.sampled_from(STATIC_ORDERS), programs_counts, blocks, st.integers(1, 4))
def test_walk_is_what_simulate_runs(problems, order, programs, block, group_m):
    dealt = walk(problems, order, programs, block, group_m)
    timeline = simulate(problems, order, programs, block, UNIT, group_m)
    assert [[span.tile for span in line] for line in timeline.programs] == dealt
    total = sum(map(len, dealt))
    most = max(map(len, dealt))
    assert most == -(-total // programs) == timeline.waves


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
        (lambda: simulate([], "lifo"), ValueError, "'largest_first'"),
        (lambda: simulate([], "chunks", 4, (16, 16)), ValueError, "want .*BLOCK_K"),
        (lambda: simulate([], "chunks", 4, (16, 16, -4)), ValueError, r"block\[2\] is -4"),
        (lambda: simulate([], cost=3.0), TypeError, "cost is a float; want a CostModel"),
        (lambda: one_launch_per_problem([(1, 1, -1)]), ValueError, r"problems\[0\]"),
        (lambda: CostModel(tflops_per_program=0), ValueError, "tflops_per_program is 0; want more than 0"),
        (lambda: CostModel(atomic_us=-1), ValueError, "atomic_us is -1; want at least 0"),
        (lambda: CostModel(startup_us=float("nan")), ValueError, "startup_us is nan"),
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
