"""The next tile number of a cluster: every ``clusters``-th one, or in a dynamic order the next that no cluster has.

In a dynamic order a cluster's first number is its own, and the others come from a counter in global memory, 0 when the
kernel starts. The loading warp of the first CTA adds one to it before it loads a tile, and reads the answer when two
blocks are being loaded, which hides the latency of memory. It immediately writes the number to all CTAs of the cluster;
a CTA without a partner writes it to itself, by an ordinary store. So the warps find their next tile while this one is
still being loaded. The number goes to a slot of a ring in shared memory, with two barriers per slot as for stages. A
slot is full when the number has arrived, and free when all warps that count tiles, of both CTAs, have read it. After
the last tile they read ``NONE``; a cluster without tiles reads it first.

A tile that one cluster has asked for stays with it, even if another cluster is idle at the end. So if tiles are only a
block or two deep, loads run ahead less than the stages allow: ``AHEAD``.

Every tile asks for one number. If there are 100 tiles, the cluster that gets the 100th answer knows that no other one
will ask. It sets the counter back to 0, so that no other launch has to do that before the next one.

A cluster's numbers increase, as in a fixed order, so the windows of groups (``scheduler``) serve both. A tile's sum
does not depend on its cluster. Dynamic persistent schedulers in CUTLASS and QuACK distribute tiles in the same way.
"""

from typing import NamedTuple

import cutlass
from cutlass import Float64, Int32, cute

from course_kernels.kernels.cute_sm90.config import WARP_GROUP
from course_kernels.kernels.cute_sm90.scheduler import LANES, Problem, Tile, Window, find_group, find_tile, passed_by

SLOTS = 8  # most numbers that are sent and not yet read
# A tile's loads begin when all warps have read the number of the tile ``AHEAD`` before it. Less than ``SLOTS``: after a
# slot gets its next number, its barrier no longer shows whether the previous one was read.
AHEAD = 2
NONE = 2**31 - 1
NUMBER_BYTES = 4


class Order(NamedTuple):
    """The counter, and in shared memory the slots' numbers and barriers; all None if the order is fixed."""

    counter: cute.Pointer | None = None
    numbers: cute.Pointer | None = None
    full: cute.Pointer | None = None
    free: cute.Pointer | None = None


class Place(NamedTuple):
    """A warp's place in its cluster's order: a tile number, and the count of slots that it has read or written."""

    number: Int32
    slots: Int32


@cute.jit
def make_order(
    config: cutlass.Constexpr,
    counter: cute.Tensor | None,
    numbers: cute.Pointer,
    barriers: cute.Pointer,
    gatherers: cutlass.Constexpr[int] = 0,
) -> Order:
    """Set up the barriers; the cluster has to be synchronized before they are used.

    Args:
        config: of the kernel; nothing is set up if it is not dynamic.
        counter: (1,) float64, exact up to 2**53. With integers the compiler would add up all lanes' requests, and then
            wait for the answer immediately.
        numbers: room for ``SLOTS`` int32 in shared memory.
        barriers: room for twice as many int64.
        gatherers: warps of each CTA that gather rows, and count tiles for that.
    """
    if cutlass.const_expr(not config.dynamic):
        return Order()
    # All warps that multiply or gather, and the loading warps of all CTAs except the first, which already knows the
    # numbers.
    readers = config.cluster * (2 * WARP_GROUP // 32 + gatherers) + config.cluster - 1
    if cute.arch.thread_idx()[0] == 0:
        for slot in cutlass.range_constexpr(SLOTS):
            cute.arch.mbarrier_init(barriers + slot, 1)
            cute.arch.mbarrier_init(barriers + SLOTS + slot, readers)
    return Order(counter.iterator, numbers, barriers, barriers + SLOTS)


@cute.jit
def take(config: cutlass.Constexpr, order: Order, slots: Int32) -> Place:
    """Read the number in a reader's next slot, after ``slots`` others. Called by whole warps."""
    slot = slots % SLOTS
    cute.arch.mbarrier_wait(order.full + slot, slots // SLOTS % 2)
    number = cute.arch.load(order.numbers + slot, Int32, sem="relaxed", scope="cta", ss="cta")
    # All lanes have the same number. Without this hint, the compiler would move each wgmma operand's address to a
    # uniform register.
    number = cute.arch.make_warp_uniform(number)
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        if cutlass.const_expr(config.cluster == 1):
            cute.arch.mbarrier_arrive(order.free + slot)
        else:
            cute.arch.mbarrier_arrive(order.free + slot, 0)
    return Place(number, slots + 1)


@cute.jit
def following(config: cutlass.Constexpr, order: Order, place: Place) -> Place:
    """Get the cluster's next place; after ``NONE`` nothing is read. Called by whole warps that multiply, once for each
    number of their cluster."""
    if cutlass.const_expr(not config.dynamic):
        place = Place(place.number + cute.arch.grid_dim()[2], place.slots)
    elif place.number != NONE:
        place = take(config, order, place.slots)
    return place


@cute.jit
def leave(config: cutlass.Constexpr, order: Order, place: Place):
    """Read ``NONE`` if the cluster has no tile at all. Called by whole warps that multiply, after all tiles."""
    if cutlass.const_expr(not config.dynamic):
        return
    if place.slots == 0:
        take(config, order, place.slots)


@cute.jit
def claim(config: cutlass.Constexpr, order: Order) -> Float64:
    """Ask for the cluster's next number, before a tile is loaded. Only the first lane of the first CTA's loading warp
    gets the counter's value, and waits for it only when it uses it."""
    claimed = Float64(0.0)
    if cutlass.const_expr(not config.dynamic):
        return claimed
    if cute.arch.block_idx_in_cluster() == 0 and cute.arch.lane_idx() == 0:
        claimed = cute.arch.atomic_add(order.counter, Float64(1.0), sem="relaxed", scope="gpu")
    return claimed


@cute.jit
def announce(
    config: cutlass.Constexpr,
    along: cutlass.Constexpr,
    problem: Problem,
    order: Order,
    window: Window,
    place: Place,
    claimed: Float64,
) -> tuple[Window, Place]:
    """Send the number of ``claim`` to all warps of the cluster, while a tile is loaded; reset the counter after the
    last claim of all. Returns the window, and the place of the next tile. Called by the loading warps; that of the
    first CTA sends."""
    if cutlass.const_expr(not config.dynamic):
        return window, place
    if cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) == 0:
        number = cute.arch.grid_dim()[2] + Int32(cute.arch.shuffle_sync(claimed, 0))
        window, lane, _, _ = find_group(config, along, problem, window, number)
        told = number
        if lane == LANES:
            told = Int32(NONE)
            total = passed_by(config, along, window)  # the window is the last one
            if number == total + cute.arch.grid_dim()[2] - 1 and cute.arch.lane_idx() == 0:
                cute.arch.store(order.counter, Float64(0.0), sem="relaxed", scope="gpu")
        place = Place(number, send(config, order, told, place.slots))
    return window, place


@cute.jit
def next_to_load(
    config: cutlass.Constexpr,
    along: cutlass.Constexpr,
    problem: Problem,
    order: Order,
    window: Window,
    place: Place,
) -> tuple[Window, Tile, Place]:
    """Find the window with the cluster's next tile, this CTA's tile, and its place. Called by the loading warps; that
    of the first CTA has the number from ``announce``, and waits while it is too far ahead."""
    if cutlass.const_expr(not config.dynamic):
        place = following(config, order, place)
    elif cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) != 0:
        place = take(config, order, place.slots)
    else:
        wait_free(order, place.slots + SLOTS - AHEAD - 1)
    window, tile = find_tile(config, along, problem, window, place.number)
    return window, tile, place


@cute.jit
def send(config: cutlass.Constexpr, order: Order, number: Int32, slots: Int32) -> Int32:
    """Write a number to the next slot of all CTAs, after ``slots`` others. Returns the new count of slots. Called by a
    whole warp."""
    wait_free(order, slots)
    slot = slots % SLOTS
    if cute.arch.lane_idx() == 0:
        if cutlass.const_expr(config.cluster == 1):
            cute.arch.store(order.numbers + slot, number, sem="relaxed", scope="cta", ss="cta")
            cute.arch.mbarrier_arrive(order.full + slot)
        else:
            for cta in cutlass.range_constexpr(config.cluster):
                cute.arch.mbarrier_arrive_and_expect_tx(order.full + slot, NUMBER_BYTES, cta)
                cute.arch.store_async_dsmem(order.numbers + slot, number, order.full + slot, cta)
    return slots + 1


@cute.jit
def wait_free(order: Order, slots: Int32):
    """Wait until the slot after ``slots`` others is free."""
    # A wait for the phase before the first one does not block.
    cute.arch.mbarrier_wait(order.free + slots % SLOTS, (slots // SLOTS + 1) % 2)


@cute.jit
def leave_loading(config: cutlass.Constexpr, order: Order, place: Place):
    """Do what ``leave`` does, for the loading warps. That of the first CTA waits until every number was read: if it
    ended earlier, others would write to its barriers after its end. Other CTAs can end: their warps have read all
    numbers that were sent to them."""
    if cutlass.const_expr(config.dynamic):
        rank, slots = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()), place.slots
        if rank == 0:
            if slots == 0:
                slots = send(config, order, Int32(NONE), slots)
            for slot in cutlass.range_constexpr(SLOTS):
                wait_free(order, slots + slot)
        else:
            leave(config, order, place)
