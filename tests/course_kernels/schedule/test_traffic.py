"""Bytes that a schedule reads: by hand, within their bounds, and less where tiles share."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_kernels.schedule import (
    ORDERS,
    CostModel,
    bytes_moved,
    simulate,
)

# Times in whole microseconds: a 1 x 1 x 1 step takes 1, everything else is free.
UNIT = CostModel(tflops_per_program=2e-6, load_gb_per_s=1e9, store_gb_per_s=1e9, startup_us=0, atomic_us=0, launch_us=0)
problem = st.tuples(st.integers(0, 90), st.integers(0, 90), st.integers(0, 200))
problem_lists = st.lists(problem, max_size=6)
blocks = st.tuples(st.sampled_from([16, 32]), st.sampled_from([16, 32]), st.sampled_from([16, 64]))
programs_counts = st.integers(1, 40)
orders = st.sampled_from(sorted(ORDERS))
short = settings(max_examples=60, deadline=None)


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


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bytes_moved([]), TypeError, "timeline is a list; want a Timeline"),
        (lambda: bytes_moved(simulate([]), l2_bytes=-1), ValueError, "l2_bytes is -1"),
        (lambda: bytes_moved(simulate([]), l2_bytes="50 MB"), TypeError, "l2_bytes is '50 MB'"),
        (lambda: bytes_moved(simulate([]), k_slab=0), ValueError, "k_slab is 0"),
    ],
)
def test_bad_input_says_what_it_wants(call, error, message):
    with pytest.raises(error, match=message):
        call()
