"""A cluster has the tiles of its CTAs."""

from __future__ import annotations

from types import SimpleNamespace

from gemm_course.lessons import l09_clusters


def design(tile, cluster, ctas=1):
    return SimpleNamespace(tile=tile, cluster=cluster, ctas=ctas)


def test_a_cluster_has_the_tiles_of_its_ctas_and_a_pair_halves_them():
    alone = l09_clusters.cluster_of(design((128, 256, 64), (2, 1)))
    assert alone == (256, 256, (2, 1), 1, 128.0)
    pairs = l09_clusters.cluster_of(design((256, 256, 64), (4, 2), ctas=2))
    assert (pairs.rows, pairs.columns, pairs.pair) == (512, 512, 2)
    assert pairs.reuse == 256.0
