"""A model of time of one expert-parallel layer on P GPUs: bytes of each link, the wire, the slowest rank, overlap."""

from __future__ import annotations

from math import comb
from typing import Literal, NamedTuple

from course_kernels.schedule.orders import check_number, check_positive

__all__ = ["Cluster", "Exchange", "ExpertLayer", "LayerSpan", "LayerTime", "Link", "exchange", "layer_time", "owners"]

Copies = Literal["choice", "rank", "node"]
COPIES = ("choice", "rank", "node")


class ExpertLayer(NamedTuple):
    """A layer's extents; a token chooses ``top_k`` experts, all sets of them alike."""

    hidden: int
    inner: int
    experts: int
    top_k: int
    itemsize: int = 2


class Link(NamedTuple):
    """The way out of one GPU: a transfer of b bytes takes ``latency_us + b / gb_per_s``."""

    latency_us: float
    gb_per_s: float

    def time_us(self, size: float) -> float:
        """Time of a transfer; 0 of nothing."""
        check_number("size", size)
        check_number("latency_us", self.latency_us)
        check_number("gb_per_s", self.gb_per_s, above=True)
        return self.latency_us + size / self.gb_per_s / 1e3 if size else 0.0


class Cluster(NamedTuple):
    """GPUs in nodes.

    Attributes:
        ranks: GPUs that share the experts.
        node: GPUs of a node; NVLink connects them, the network nodes.
        nvlink: fitted to ``all_to_all_single`` on 2 H100 (NCCL, torch 2.11): 16, 128 and 256 MiB that leave a GPU take
            170, 540 and 1,010 us; the model's largest error is 11 %.
        network: one 400 Gb/s adapter for each GPU, by its name plate.
        tflops: of a layer's products on one GPU; measured about 600 on an H100.
        chunk_us: what each further chunk adds to the compute: launches, and products of fewer rows.
    """

    ranks: int
    node: int = 8
    nvlink: Link = Link(95.0, 295.0)
    network: Link = Link(30.0, 50.0)
    tflops: float = 600.0
    chunk_us: float = 60.0


class Exchange(NamedTuple):
    """One way of the mean GPU's tokens: rows that leave it."""

    nvlink_rows: float
    network_rows: float

    def time_us(self, row_bytes: float, cluster: Cluster, largest: float = 1.0) -> float:
        """Time of the rank whose link carries ``largest`` times the mean. Both links move at the same time."""
        check_number("row_bytes", row_bytes)
        check_number("largest", largest)
        nvlink = cluster.nvlink.time_us(self.nvlink_rows * row_bytes * largest)
        network = cluster.network.time_us(self.network_rows * row_bytes * largest)
        return max(nvlink, network)


class LayerSpan(NamedTuple):
    """A step of a chunk, in microseconds from the start: "dispatch" and "combine" on the wire, "experts" on the SMs."""

    step: str
    chunk: int
    start: float
    end: float


class LayerTime(NamedTuple):
    """A layer's forward on the slowest rank, in microseconds.

    Attributes:
        total_us: from the first send to the last sum.
        compute_us: of the experts, with what chunks add.
        dispatch_us, combine_us: on the wire, over all chunks.
        spans: every step.
    """

    total_us: float
    compute_us: float
    dispatch_us: float
    combine_us: float
    spans: tuple[LayerSpan, ...]

    @property
    def chunks(self) -> int:
        """How many."""
        return len(self.spans) // 3

    @property
    def exposed_us(self) -> float:
        """Time in which no expert computes."""
        return self.total_us - self.compute_us


def owners(experts: int, top_k: int, parts: int) -> float:
    """The mean number of parts, each with ``experts / parts`` experts, that ``top_k`` different experts are in."""
    for name, value in dict(experts=experts, top_k=top_k, parts=parts).items():
        check_positive(name, value)
    if experts % parts:
        raise ValueError(f"experts is {experts}; want a multiple of parts = {parts}")
    if top_k > experts:
        raise ValueError(f"top_k is {top_k}; want at most experts = {experts}")
    return parts * (1 - comb(experts - experts // parts, top_k) / comb(experts, top_k))


def exchange(layer: ExpertLayer, tokens: int, cluster: Cluster, copies: Copies = "rank") -> Exchange:
    """Count the rows that leave a GPU of ``tokens`` tokens.

    Args:
        layer: which experts tokens choose.
        tokens: of each GPU.
        cluster: where the experts are.
        copies: "choice" sends a row for each expert, "rank" one to each GPU that has some, "node" one to each node, of
            which a GPU hands it on over NVLink.

    Raises:
        TypeError, ValueError: naming the argument or its field, what it is and what it wants.
    """
    if copies not in COPIES:
        raise ValueError(f"copies is {copies!r}; want one of {COPIES}")
    check_number("tokens", tokens)
    _check(layer, cluster)
    ranks, node = cluster.ranks, min(cluster.node, cluster.ranks)
    to_ranks = owners(layer.experts, layer.top_k, ranks)
    rows = tokens * (layer.top_k if copies == "choice" else to_ranks)
    inside, outside = (node - 1) / ranks, (ranks - node) / ranks
    if copies != "node":
        return Exchange(rows * inside, rows * outside)
    nodes = ranks // node
    # What arrives from other nodes goes on over NVLink, unless the GPU that gets it has the expert.
    return Exchange(rows * (node - 1) / node, tokens * owners(layer.experts, layer.top_k, nodes) * (nodes - 1) / nodes)


def _check(layer: ExpertLayer, cluster: Cluster) -> None:
    """Raise unless the layer can be on the cluster, naming the field that is wrong."""
    for name, value, kind in (("layer", layer, ExpertLayer), ("cluster", cluster, Cluster)):
        if not isinstance(value, kind):
            raise TypeError(f"{name} is a {type(value).__name__}; want {kind.__name__}")
    for name in ("hidden", "inner", "experts", "top_k"):
        check_positive(name, getattr(layer, name))
    check_number("itemsize", layer.itemsize, above=True)
    for name in ("ranks", "node"):
        check_positive(name, getattr(cluster, name))
    for name, link in (("nvlink", cluster.nvlink), ("network", cluster.network)):
        if not isinstance(link, Link):
            raise TypeError(f"{name} is a {type(link).__name__}; want Link")
        check_number(f"{name}.latency_us", link.latency_us)
        check_number(f"{name}.gb_per_s", link.gb_per_s, above=True)
    check_number("tflops", cluster.tflops, above=True)
    check_number("chunk_us", cluster.chunk_us)
    if cluster.ranks % min(cluster.node, cluster.ranks):
        raise ValueError(f"ranks is {cluster.ranks}; want a multiple of node = {cluster.node}, or at most as many")
    if layer.experts % cluster.ranks:
        raise ValueError(f"experts is {layer.experts}; want a multiple of the cluster's ranks = {cluster.ranks}")
    if layer.top_k > layer.experts:
        raise ValueError(f"top_k is {layer.top_k}; want at most experts = {layer.experts}")


def layer_time(
    layer: ExpertLayer,
    tokens: int,
    cluster: Cluster,
    *,
    copies: Copies = "rank",
    imbalance: float = 1.0,
    chunks: int | None = None,
) -> LayerTime:
    """Predict a layer's forward.

    Args:
        layer, tokens, cluster, copies: as for ``exchange``.
        imbalance: the choices of the rank that gets most, over the mean. Its experts and its links take that longer,
            and all others wait.
        chunks: parts of the tokens, of which one is on the wire while another is computed; None takes the number up to
            8 that is fastest.

    Raises:
        TypeError, ValueError: as for ``exchange``.

    Notes:
        The wire carries one step at a time, and so do the SMs; what is ready first goes first. Left out: memory traffic
        of gathers and sums, and SMs that the wire takes from the products.
    """
    check_positive("tokens", tokens)
    check_number("imbalance", imbalance, 1.0)
    if chunks is None:
        found = [
            layer_time(layer, tokens, cluster, copies=copies, imbalance=imbalance, chunks=each) for each in range(1, 9)
        ]
        return min(found, key=lambda each: each.total_us)
    check_positive("chunks", chunks)
    rows = exchange(layer, tokens, cluster, copies)
    part = Exchange(rows.nvlink_rows / chunks, rows.network_rows / chunks)
    wire = part.time_us(layer.hidden * layer.itemsize, cluster, imbalance)
    operations = 6 * tokens * layer.top_k * layer.hidden * layer.inner
    compute = operations * imbalance / cluster.tflops / 1e6 / chunks + cluster.chunk_us * (chunks - 1) / chunks
    spans, sms = [], 0.0
    waiting = [(0.0, 0, "dispatch", chunk) for chunk in range(chunks)]  # (ready, order, step, chunk)
    free = 0.0
    while waiting:
        waiting.sort(key=lambda each: (max(each[0], free), each[1], each[3]))
        ready, _, step, chunk = waiting.pop(0)
        start = max(ready, free)
        free = start + wire
        spans.append(LayerSpan(step, chunk, start, free))
        if step == "dispatch":
            begin = max(sms, free)
            sms = begin + compute
            spans.append(LayerSpan("experts", chunk, begin, sms))
            waiting.append((sms, 1, "combine", chunk))
    return LayerTime(free, compute * chunks, wire * chunks, wire * chunks, tuple(spans))
