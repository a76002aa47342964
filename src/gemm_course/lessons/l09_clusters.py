"""The part of C that a cluster of CTAs computes, from an operator's metadata."""

from __future__ import annotations

from typing import NamedTuple


class Cluster(NamedTuple):
    """The part of C that a cluster computes at a time."""

    rows: int
    columns: int
    ctas: tuple[int, int]  # along M and along N
    pair: int  # CTAs along M that share an MMA instruction, 1 or 2
    reuse: float  # products per element fetched from outside of the cluster


def cluster_of(design) -> Cluster:
    """Compute the part of C that a cluster computes, and its reuse of operands.

    A `cutlass_ops.Design` has the ``tile`` of one CTA or of a pair along M, the ``cluster``, and the ``ctas``.
    """
    tile_m, tile_n, _ = design.tile
    along_m, along_n = design.cluster
    rows, columns = tile_m // design.ctas * along_m, tile_n * along_n
    return Cluster(rows, columns, (along_m, along_n), design.ctas, rows * columns / (rows + columns))
