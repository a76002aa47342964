"""The effects that the lesson on scheduling shows must be visible with the simulator's default costs."""

import pytest

from course_kernels.schedule import ORDERS, one_launch_per_problem, simulate


def weight_gradients(tokens):
    """One (2048, 1536, tokens) problem per expert: equal tile counts, unequal tile costs."""
    return [(2048, 1536, count) for count in tokens]


ZIPF = [6028, 3014, 2009, 1507, 1206, 1005, 861, 754]
UNIFORM = [2048] * 8
ONE_HOT = [0, 0, 0, 16384, 0, 0, 0, 0]


def spans_us(tokens):
    problems = weight_gradients(tokens)
    return {order: simulate(problems, order).makespan for order in ORDERS}


def test_uniform_batch_makes_static_orders_equal_and_dynamic_slower():
    took = spans_us(UNIFORM)
    assert took["round_robin"] == took["chunks"] == took["swizzled"] == pytest.approx(took["largest_first"])
    assert 1.01 < took["dynamic"] / took["round_robin"] < 1.05


def test_skew_punishes_chunks_and_rewards_dynamic():
    took = spans_us(ZIPF)
    assert took["chunks"] > 2 * took["round_robin"]
    assert took["dynamic"] < 0.95 * took["round_robin"]
    assert took["largest_first"] <= took["dynamic"]


def test_dynamic_needs_the_expensive_tiles_first():
    took = spans_us(ZIPF[::-1])
    assert took["dynamic"] > took["round_robin"] > 1.1 * took["largest_first"]


def test_one_hot_is_bounded_by_its_longest_tile():
    problems = weight_gradients(ONE_HOT)
    timeline = simulate(problems, "largest_first")
    assert timeline.makespan == pytest.approx(timeline.lower_bounds.longest)
    assert timeline.tail_share > 0.15
    assert simulate(problems, "chunks").imbalance > 5


def test_round_robin_balances_tiles_and_not_work():
    # 66 tiles a problem, alternately expensive and cheap: half of 132 programs get every expensive one.
    problems = [(1408, 1536, k) for k in (8192, 512) * 4]
    timeline = simulate(problems, "round_robin")
    assert {len(line) for line in timeline.programs} == {4}
    assert timeline.imbalance > 1.7
    assert simulate(problems, "dynamic").imbalance < 1.25


def test_one_launch_per_problem_leaves_programs_idle():
    problems = weight_gradients(UNIFORM)
    assert one_launch_per_problem(problems).makespan > 1.4 * simulate(problems).makespan
