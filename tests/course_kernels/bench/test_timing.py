"""Medians are medians, functions take turns, and times are the device's."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest
import torch

from course_kernels import GroupGemmPlan
from course_kernels.bench import timing
from course_kernels.testing import assert_exact, make_operands


def test_summary_gives_median_and_quartiles():
    assert timing.summary([5.0, 1.0, 4.0, 2.0, 3.0]) == {"median_us": 3.0, "q1_us": 1.5, "q3_us": 4.5}
    assert timing.summary([1.23456, 1.23456, 1.23456])["median_us"] == 1.23


@pytest.mark.gpu
def test_graph_of_a_plan_replays_what_was_captured():
    group_A, group_B = make_operands([(128, 128, 128)] * 4, device="cuda")
    plan = GroupGemmPlan(group_A, group_B)
    graph = timing.capture(plan.run)
    for c in plan.out:
        c.fill_(float("nan"))
    graph.replay()
    for c, a, b in zip(plan.out, group_A, group_B):
        assert_exact(c, a, b)


@pytest.mark.gpu
def test_graphs_of_one_pool_share_their_memory():
    numbers, pool, kept = torch.arange(2**24, device="cuda"), torch.cuda.graph_pool_handle(), []
    graphs, held = [], []
    for factor in (2, 3):

        def multiply(factor=factor):
            kept.clear()
            kept.append(numbers * factor)

        graphs.append(timing.capture(multiply, pool=pool))
        held.append(kept[0].data_ptr())
        graphs[-1].replay()
        assert torch.equal(kept[0], numbers * factor)
        kept.clear()  # the next graph may write there
    assert held[0] == held[1]


FLUSH = "\0"


@pytest.fixture
def clock(monkeypatch):
    """Calls instead of a device: ``clock.called`` has what was called, and ``clock.us`` says how long one of them, by
    its place there, takes."""
    clock = SimpleNamespace(called=[], us=None)

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = len(clock.called)

        def elapsed_time(self, end):
            return sum(map(clock.us, range(self.at, end.at))) / 1e3

    cuda = SimpleNamespace(Event=Event, synchronize=lambda: None)
    flush = SimpleNamespace(zero_=lambda: clock.called.append(FLUSH))
    monkeypatch.setattr(timing, "torch", SimpleNamespace(cuda=cuda, int32=None, empty=lambda *_, **__: flush))
    clock.functions = lambda names: {name: lambda name=name: clock.called.append(name) for name in names}
    return clock


def test_rounds_are_whole_and_no_function_always_follows_the_same(clock):
    """And L2 is overwritten before each call, which is no part of what is timed."""
    names, called = "abcd", clock.called
    clock.us = lambda i: 1e3 * ord(called[i])
    times = timing.interleaved_us(clock.functions(names), repeats=40)
    assert times == {name: [ord(name) * 1e3] * 40 for name in names}
    assert called[::2] == [FLUSH] * (40 * len(names))
    called = called[1::2]
    rounds = [called[i : i + len(names)] for i in range(0, len(called), len(names))]
    assert all(sorted(each) == list(names) for each in rounds)
    for name in names:
        before = {called[i - 1] for i, other in enumerate(called) if i and other == name}
        assert before >= set(names) - {name}


def test_back_to_back_each_function_runs_alone_and_settles_first(clock):
    """A call takes 100 µs, but 300 before the clock has settled, for 40 calls without another one in between."""
    called = clock.called

    def alone(i):
        return sum(1 for _ in itertools.takewhile(lambda name: name == called[i], reversed(called[:i])))

    clock.us = lambda i: 300 if alone(i) < 40 else 100
    random.seed(0)
    times = timing.sustained_us(clock.functions("abcd"), repeats=4, seconds=0.006, settling=0.015, rounds=3)
    assert times == {name: [100.0] * 12 for name in "abcd"}
    turns = [name for name, _ in itertools.groupby(called)]
    rounds = [turns[i : i + 4] for i in range(0, len(turns), 4)]
    assert [sorted(each) for each in rounds] == [list("abcd")] * 3, "nobody in between"
    assert len(set(map(tuple, rounds))) > 1, "always in the same order"
    # Two calls that say how long one takes, 300 µs here; then 15 ms of them, and 6 ms in four parts.
    assert {called.count(name) for name in "abcd"} == {3 * (2 + 15000 // 300 + 4 * (6000 // 4 // 300))}


@pytest.mark.gpu
def test_times_back_to_back_are_of_the_device():
    slow, fast = (lambda: torch.cuda._sleep(2_000_000)), (lambda: torch.cuda._sleep(200_000))
    times = timing.sustained_us({"slow": slow, "fast": fast}, repeats=3, seconds=0.02, settling=0.02, rounds=2)
    median = {name: timing.summary(values)["median_us"] for name, values in times.items()}
    assert 5 < median["slow"] / median["fast"] < 15


@pytest.mark.gpu
def test_interleaved_times_are_of_the_device_and_of_the_right_function():
    slow, fast = (lambda: torch.cuda._sleep(2_000_000)), (lambda: torch.cuda._sleep(20_000))
    times = timing.interleaved_us({"slow": slow, "fast": fast}, repeats=10)
    assert {name: len(values) for name, values in times.items()} == {"slow": 10, "fast": 10}
    median = {name: timing.summary(values)["median_us"] for name, values in times.items()}
    assert median["slow"] > 300
    assert median["fast"] < median["slow"] / 5


@pytest.mark.gpu
def test_host_time_is_not_the_devices():
    assert timing.host_us(lambda: torch.cuda._sleep(2_000_000), repeats=40) < 300
