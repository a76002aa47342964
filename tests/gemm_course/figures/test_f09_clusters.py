"""The figure of operators' clusters shows what their metadata say."""

from __future__ import annotations

from types import SimpleNamespace

from drawn import boxes
from gemm_course.figures import f09_clusters as operators
from gemm_course.lessons import l09_clusters


def design(tile, cluster, ctas=1):
    return SimpleNamespace(tile=tile, cluster=cluster, ctas=ctas)


def test_a_cluster_has_the_tiles_of_its_ctas_and_a_pair_halves_them():
    alone = l09_clusters.cluster_of(design((128, 256, 64), (2, 1)))
    assert alone == (256, 256, (2, 1), 1, 128.0)
    pairs = l09_clusters.cluster_of(design((256, 256, 64), (4, 2), ctas=2))
    assert (pairs.rows, pairs.columns, pairs.pair) == (512, 512, 2)
    assert pairs.reuse == 256.0


def test_clusters_are_drawn_to_one_scale_with_the_strips_that_they_fetch():
    figure = operators.clusters({"one": design((128, 64, 64), (1, 1)), "pairs": design((256, 256, 64), (2, 2), ctas=2)})
    one, pairs = figure.axes
    assert boxes(one, "CTA") == [(0, 0, 64, 128)]
    assert boxes(pairs, "CTA") == [(0, 0, 256, 128), (256, 0, 256, 128), (0, 128, 256, 128), (256, 128, 256, 128)]
    colors = [each.get_facecolor() for each in pairs.patches if each.get_gid() == "CTA"]
    assert colors[0] == colors[2] != colors[1] == colors[3], "a pair has one colour"
    assert [box[2:] for box in boxes(pairs, "B")] == [(512, boxes(pairs, "A")[0][2])]
    assert boxes(pairs, "A")[0][3] == 256
    assert boxes(one, "A")[0][2] == boxes(pairs, "A")[0][2], "a strip is as thick in every panel"
    words = [text.get_text() for text in pairs.texts]
    assert words == ["A", "B", "256 × 512 of C\n171 products\nper element"]
    assert one.get_ylim() == pairs.get_ylim()
    assert [axes.get_title(loc="left") for axes in (one, pairs)] == ["one", "pairs"]
