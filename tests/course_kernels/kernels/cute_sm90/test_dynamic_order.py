"""The dynamic order without a GPU: its own source, run by threads that take the places of warps.

A thread is a warp of one lane. Barriers and stores between CTAs are Python's, and say so if a number is overwritten
before all have read it, or if somebody writes to a CTA that has ended. On a GPU: ``test_dynamic_order_gpu``.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest

from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig

import plain_scheduler  # isort: skip

PATIENCE = 20.0  # seconds until a wait counts as one for ever
DYNAMIC = CuteConfig(128, 192, 64, 2, 4, PINGPONG, dynamic=True)
CONFIGS = {
    f"{schedule} {cluster}": replace(DYNAMIC, schedule=schedule, cluster=cluster, tile_m=128)
    for schedule in (PINGPONG, COOPERATIVE)
    for cluster in (1, 2)
}


class Pointer(NamedTuple):
    name: str
    index: int = 0

    def __add__(self, more):
        return Pointer(self.name, self.index + more)


class Barrier:
    """An mbarrier. A phase ends when all have arrived, and all bytes that were announced."""

    def __init__(self, count):
        self.count = self.pending = count
        self.bytes = self.phase = 0

    def change(self, arrived, announced):
        self.pending -= arrived
        self.bytes += announced
        assert self.pending >= 0, "more arrive than there are"
        if self.pending == 0 == self.bytes:
            self.pending, self.phase = self.count, self.phase + 1


class Machine:
    """Memory of all CTAs, and what the source asks of ``cute.arch``."""

    def __init__(self, clusters, ctas, seed):
        self.clusters, self.ctas, self.counter, self.asked = clusters, ctas, 0, 0
        self.changed = threading.Condition()
        self.barriers, self.numbers, self.ended, self.errors = {}, {}, set(), []
        self.me, self.draw = threading.local(), random.Random(seed)

    def at(self, pointer, cta=None):
        cta = (self.me.cluster, self.me.rank if cta is None else cta)
        assert cta not in self.ended, "this CTA has ended"
        return (*cta, *pointer)

    def pause(self):
        time.sleep(self.draw.choice((0, 0, 0, 1e-4, 5e-4)))

    def init(self, pointer, count):
        with self.changed:
            self.barriers[self.at(pointer)] = Barrier(count)

    def change(self, pointer, cta, arrived, announced):
        with self.changed:
            self.barriers[self.at(pointer, cta)].change(arrived, announced)
            self.changed.notify_all()

    def wait(self, pointer, parity):
        self.pause()
        with self.changed:
            barrier = self.barriers[self.at(pointer)]
            passed = self.changed.wait_for(lambda: barrier.phase % 2 != parity or self.errors, PATIENCE)
            assert passed, f"{pointer} waits for ever"
            assert not self.errors, "another warp failed"

    def send(self, pointer, number, full, cta):
        assert self.ctas > 1, "the cluster's addresses are for clusters"
        with self.changed:
            self.numbers[self.at(pointer, cta)] = number
        self.pause()
        self.change(full, cta, 0, -4)

    def store(self, pointer, number, scope, **_):
        with self.changed:
            if scope == "gpu":
                self.counter = number
            else:
                self.numbers[self.at(pointer)] = number

    def add(self, pointer, more, **_):
        with self.changed:
            self.counter, self.asked = self.counter + more, self.asked + 1
            return self.counter - more

    def arch(self):
        return SimpleNamespace(
            thread_idx=lambda: (0, 0, 0),
            lane_idx=lambda: 0,
            make_warp_uniform=lambda value: value,
            shuffle_sync=lambda value, lane: value,
            sync_warp=lambda: None,
            grid_dim=lambda: (self.ctas, 1, self.clusters),
            block_idx_in_cluster=lambda: self.me.rank,
            mbarrier_init=self.init,
            mbarrier_wait=self.wait,
            mbarrier_arrive=lambda pointer, cta=None: self.change(pointer, cta, 1, 0),
            mbarrier_arrive_and_expect_tx=lambda pointer, size, cta: self.change(pointer, cta, 1, size),
            store_async_dsmem=self.send,
            store=self.store,
            load=lambda pointer, kind, **_: self.numbers[self.at(pointer)],
            atomic_add=self.add,
        )


def simulate(config, clusters, total, seed):
    """Run a kernel's warps over ``total`` tiles: the numbers of each warp, by cluster, CTA, and role."""
    machine = Machine(clusters, config.cluster, seed)
    scheduler = ModuleType("scheduler")
    scheduler.Problem = scheduler.Tile = scheduler.Window = object
    scheduler.LANES = 32
    scheduler.find_group = lambda config, along, problem, window, number: (
        max(window, number), 0 if number < problem else 32, number, -1,
    )  # fmt: skip
    scheduler.find_tile = lambda config, along, problem, window, number: (
        max(window, number),
        SimpleNamespace(found=number < problem),
    )
    scheduler.passed_by = lambda config, along, window: total
    dynamic_order = plain_scheduler.load(machine.arch(), name="dynamic_order", scheduler=scheduler)
    given = dict(config=config, along="k", problem=total)
    found, orders, left = {}, {}, {}
    loaded = {}  # tiles whose loads are issued, by CTA

    def note(role, number):
        assert not found[role] or found[role][-1] < number, "the windows of groups only move on"
        found[role].append(number)

    def check_ahead(role, loaded_before):
        # Of a ping-pong pair each group has every other tile.
        least = (loaded_before - dynamic_order.AHEAD) // (2 if config.schedule == PINGPONG else 1)
        begun = min(len(found[other]) for other in found if other[0] == role[0] and other[2] != "load")
        assert role[1] or begun >= least, "the loads are too far ahead"

    def load(role, order, place):
        window, tile = scheduler.find_tile(**given, window=0, number=place.number)
        while tile.found:
            check_ahead(role, len(found[role]))
            note(role, place.number)
            claimed, number = dynamic_order.claim(config, order), place.number
            machine.pause()
            given_order = dict(**given, order=order)
            window, place = dynamic_order.announce(**given_order, window=window, place=place, claimed=claimed)
            machine.pause()
            with machine.changed:
                loaded[role[:2]].add(number)
                machine.changed.notify_all()
            window, tile, place = dynamic_order.next_to_load(**given_order, window=window, place=place)
        dynamic_order.leave_loading(config, order, place)

    def wait_for_loads(role, number):
        with machine.changed:
            there = machine.changed.wait_for(lambda: number in loaded[role[:2]] or machine.errors, PATIENCE)
            assert there, "a tile is not loaded"
            assert not machine.errors, "another warp failed"

    def multiply(role, order, place):
        if config.schedule == PINGPONG and role[2] == 1:
            place = dynamic_order.following(config, order, place)
        while place.number < total:
            wait_for_loads(role, place.number)
            machine.pause()
            note(role, place.number)
            if config.schedule == PINGPONG:
                place = dynamic_order.following(config, order, place)
            place = dynamic_order.following(config, order, place)
        dynamic_order.leave(config, order, place)

    def run(function, role):
        machine.me.cluster, machine.me.rank = role[:2]
        try:
            function(role, orders[role[:2]], dynamic_order.Place(role[0], 0))
        except BaseException as error:
            with machine.changed:
                machine.errors.append(error)
                machine.changed.notify_all()
        with machine.changed:
            left[role[:2]] -= 1
            if not left[role[:2]]:
                machine.ended.add(role[:2])

    warps = []
    for cluster in range(clusters):
        for rank in range(config.cluster):
            machine.me.cluster, machine.me.rank = cluster, rank
            orders[cluster, rank] = dynamic_order.make_order(
                config, SimpleNamespace(iterator=None), Pointer("numbers"), Pointer("slots")
            )
            roles = [(load, (cluster, rank, "load"))]
            roles += [(multiply, (cluster, rank, group, warp)) for group in (0, 1) for warp in range(4)]
            left[cluster, rank], loaded[cluster, rank] = len(roles), set()
            warps += roles
    for _, role in warps:
        found[role] = []
    threads = [threading.Thread(target=run, args=warp, daemon=True) for warp in warps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if machine.errors:
        raise machine.errors[0]
    assert not any(thread.is_alive() for thread in threads)
    # All that was announced has arrived, and every number that was sent was read by all.
    assert all((each.pending, each.bytes) == (each.count, 0) for each in machine.barriers.values())
    return machine, found


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(("clusters", "total"), [(3, 100), (3, 4), (3, 3), (3, 1), (2, 0), (1, 30)])
def test_every_number_once_and_all_warps_of_a_cluster_alike(config, clusters, total):
    machine, found = simulate(config, clusters, total, seed=total)
    taken = []
    for cluster in range(clusters):
        numbers = found[cluster, 0, "load"]
        taken += numbers
        assert numbers[:1] == [cluster] * (cluster < total), "the first is its own"
        for rank in range(config.cluster):
            assert found[cluster, rank, "load"] == numbers
            for group in (0, 1):
                mine = numbers[group::2] if config.schedule == PINGPONG else numbers
                assert [found[cluster, rank, group, warp] for warp in range(4)] == [mine] * 4
    assert sorted(taken) == list(range(total))
    assert machine.asked == total, "each cluster with a tile asks once in vain, and nobody after that"
    assert machine.counter == 0, "the next launch begins as this one did"


def test_a_fixed_order_asks_nobody():
    machine = Machine(5, 2, 0)
    dynamic_order = plain_scheduler.load(
        machine.arch(), name="dynamic_order", scheduler=plain_scheduler.load(machine.arch())
    )
    fixed = replace(DYNAMIC, dynamic=False)
    order = dynamic_order.make_order(fixed, None, None, None)
    assert order == dynamic_order.Order(None, None, None, None)
    assert dynamic_order.claim(fixed, order) == 0
    assert dynamic_order.following(fixed, order, dynamic_order.Place(3, 0)) == dynamic_order.Place(8, 0)
    dynamic_order.leave(fixed, order, dynamic_order.Place(3, 0))
    dynamic_order.leave_loading(fixed, order, dynamic_order.Place(3, 0))
    assert machine.barriers == {}


def test_the_simulation_notices_readers_that_are_not_waited_for(monkeypatch):
    init = Machine.init
    monkeypatch.setattr(Machine, "init", lambda self, pointer, count: init(self, pointer, max(1, count - 9)))
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE", 0.5)
    with pytest.raises(AssertionError):
        simulate(CONFIGS["cooperative 2"], clusters=2, total=60, seed=0)
