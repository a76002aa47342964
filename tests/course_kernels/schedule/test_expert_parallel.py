from __future__ import annotations

import itertools
from statistics import mean

import pytest

from course_kernels.schedule import Cluster, ExpertLayer, Link, exchange, layer_time, owners

NAN = float("nan")
QWEN = ExpertLayer(2048, 768, 128, 8)
V3 = ExpertLayer(7168, 2048, 256, 8)


@pytest.mark.parametrize("experts, top_k, parts", [(6, 2, 3), (8, 3, 2), (8, 3, 8), (4, 4, 2), (5, 2, 1)])
def test_owners_are_those_of_all_sets(experts, top_k, parts):
    each = experts // parts
    sets = itertools.combinations(range(experts), top_k)
    assert owners(experts, top_k, parts) == pytest.approx(mean(len({e // each for e in s}) for s in sets))


def test_rows_that_leave_a_gpu():
    two = exchange(QWEN, 100, Cluster(2))
    assert two.network_rows == 0
    assert two.nvlink_rows == pytest.approx(100 * owners(128, 8, 2) / 2)
    assert exchange(QWEN, 100, Cluster(2), "choice").nvlink_rows == 400
    many = {copies: exchange(V3, 1000, Cluster(64), copies) for copies in ("choice", "rank", "node")}
    rows = [each.network_rows for each in many.values()]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == 1000 * 8 * 56 / 64
    assert rows[2] == pytest.approx(1000 * owners(256, 8, 8) * 7 / 8)
    assert exchange(V3, 10, Cluster(1)) == (0, 0)


def test_the_wire_is_that_of_two_gpus():
    """all_to_all_single on 2 H100, to which NVLink's constants are fitted."""
    link = Cluster(2).nvlink
    for mib, measured in ((16, 170), (128, 540), (256, 1010)):
        assert link.time_us(mib * 2**20) == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize(
    "nodes, itemsize, published", [(2, 1, 90), (2, 2, 81), (4, 1, 61), (4, 2, 61)], ids=lambda each: str(each)
)
def test_published_bandwidths_of_several_nodes(nodes, itemsize, published):
    """DeepEP's table for 8,192 tokens of DeepSeek-V3 on H100-class GPUs with CX7, to which nothing is fitted: GB/s over
    RDMA, rows for the own node included. The model is 8 to 22 % too fast."""
    cluster = Cluster(8 * nodes)
    leave = exchange(V3, 8192, cluster, "node").network_rows * V3.hidden * itemsize
    logical = leave * nodes / (nodes - 1) / cluster.network.time_us(leave) / 1e3
    assert 1.05 < logical / published < 1.25


def test_one_chunk_shows_the_whole_wire():
    found = layer_time(QWEN, 16384, Cluster(2), chunks=1)
    assert [span.step for span in found.spans] == ["dispatch", "experts", "combine"]
    assert found.exposed_us == pytest.approx(found.dispatch_us + found.combine_us)
    assert found.compute_us == pytest.approx(6 * 16384 * 8 * 2048 * 768 / 600e6)


@pytest.mark.parametrize("chunks", [1, 2, 3, 5])
def test_steps_wait_for_their_chunk_and_for_what_is_before_them(chunks):
    spans = layer_time(QWEN, 8192, Cluster(16), chunks=chunks).spans
    for on in ({"experts"}, {"dispatch", "combine"}):
        line = sorted((s for s in spans if s.step in on), key=lambda s: s.start)
        assert all(b.start >= a.end - 1e-9 for a, b in itertools.pairwise(line))
    for chunk in range(chunks):
        steps = {s.step: s for s in spans if s.chunk == chunk}
        assert steps["dispatch"].end <= steps["experts"].start <= steps["experts"].end <= steps["combine"].start


def test_chunks_hide_the_wire_where_it_pays():
    assert layer_time(QWEN, 8192, Cluster(2), chunks=3).chunks == 3
    big, small = (layer_time(QWEN, tokens, Cluster(2)) for tokens in (65536, 256))
    assert len(big.spans) > 3
    assert big.exposed_us < layer_time(QWEN, 65536, Cluster(2), chunks=1).exposed_us / 1.5
    assert len(small.spans) == 3  # a chunk's latency costs more than it hides


def test_the_slowest_rank_decides():
    even, skewed = (layer_time(QWEN, 8192, Cluster(8), imbalance=each, chunks=1) for each in (1.0, 1.5))
    assert skewed.compute_us == pytest.approx(1.5 * even.compute_us)
    assert skewed.total_us > 1.3 * even.total_us


def test_the_network_binds_from_the_second_node_on():
    cluster = Cluster(16)
    rows = exchange(QWEN, 8192, cluster)
    assert cluster.network.time_us(rows.network_rows * 4096) > 2 * cluster.nvlink.time_us(rows.nvlink_rows * 4096)


WRONG = {
    "tokens is -3; want a finite number of at least 0": lambda: exchange(QWEN, -3, Cluster(2)),
    "tokens is '3'; want a number": lambda: exchange(QWEN, "3", Cluster(2)),
    "tokens is 0; want at least 1": lambda: layer_time(QWEN, 0, Cluster(2)),
    "hidden is -5; want at least 1": lambda: layer_time(QWEN._replace(hidden=-5), 8, Cluster(2)),
    "inner is 0; want at least 1": lambda: layer_time(QWEN._replace(inner=0), 8, Cluster(2)),
    "itemsize is 0; want a finite number above 0": lambda: layer_time(QWEN._replace(itemsize=0), 8, Cluster(2)),
    "top_k is 100; want at most experts = 6": lambda: layer_time(ExpertLayer(16, 16, 6, 100), 10, Cluster(2)),
    "top_k is 9; want at most experts = 8": lambda: owners(8, 9, 2),
    "experts is 8; want a multiple of parts = 3": lambda: owners(8, 2, 3),
    "experts is 128; want a multiple of the cluster's ranks = 3": lambda: exchange(QWEN, 8, Cluster(3)),
    "imbalance is 0.5; want a finite number of at least 1": lambda: layer_time(QWEN, 1, Cluster(2), imbalance=0.5),
    "imbalance is nan; want a finite number of at least 1": lambda: layer_time(QWEN, 1, Cluster(2), imbalance=NAN),
    "chunks is 0; want at least 1": lambda: layer_time(QWEN, 1, Cluster(2), chunks=0),
    "ranks is 0; want at least 1": lambda: exchange(QWEN, 8, Cluster(0)),
    "node is 0; want at least 1": lambda: exchange(QWEN, 8, Cluster(2, node=0)),
    "ranks is 12; want a multiple of node = 8, or at most as many": lambda: exchange(QWEN, 1, Cluster(12)),
    "tflops is 0; want a finite number above 0": lambda: layer_time(QWEN, 8, Cluster(2, tflops=0)),
    "chunk_us is nan; want a finite number of at least 0": lambda: layer_time(QWEN, 8, Cluster(2, chunk_us=NAN)),
    "nvlink.gb_per_s is 0; want a finite number above 0": lambda: exchange(QWEN, 8, Cluster(2, nvlink=Link(1, 0))),
    "network is a float; want Link": lambda: exchange(QWEN, 8, Cluster(2, network=50.0)),
    "cluster is a int; want Cluster": lambda: exchange(QWEN, 8, 2),
    "gb_per_s is 0; want a finite number above 0": lambda: Link(1, 0).time_us(8),
    "latency_us is -1; want a finite number of at least 0": lambda: Link(-1, 1).time_us(8),
    "size is -8; want a finite number of at least 0": lambda: Link(1, 1).time_us(-8),
    "row_bytes is -1; want a finite number of at least 0": lambda: exchange(QWEN, 8, Cluster(2)).time_us(
        -1, Cluster(2)
    ),
    "copies is 'both'; want one of ('choice', 'rank', 'node')": lambda: exchange(QWEN, 1, Cluster(2), "both"),
}


@pytest.mark.parametrize("words", WRONG)
def test_refused(words):
    with pytest.raises((TypeError, ValueError)) as caught:
        WRONG[words]()
    assert str(caught.value) == words


def test_nothing_takes_no_time():
    assert Link(5.0, 1.0).time_us(0) == 0
    assert exchange(QWEN, 0, Cluster(2)) == (0, 0)
