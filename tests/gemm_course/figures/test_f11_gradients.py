"""A training step's products cut what they should; experts show what is in them; one tile row sums."""

from __future__ import annotations

import pytest
import torch

from drawn import boxes, rectangles, texts, title
from gemm_course.figures import f11_gradients as gradients

SIZES = [5, 3, 0, 4]


def hatched(axes, name):
    return [g for g in range(len(SIZES)) if rectangles(axes, f"{name} {g}")[0].get_hatch()]


def test_a_layer_has_four_products_of_mode_m_and_two_of_mode_k():
    (axes,) = gradients.layer(SIZES).axes
    assert sorted(texts(axes)).count("mode m") == 4
    assert texts(axes).count("mode k") == 2
    assert hatched(axes, "dW1") == hatched(axes, "dW2") == [2]
    assert hatched(axes, "W1") == []
    assert not rectangles(axes, "x 2"), "an expert without rows has no band"
    heights = [boxes(axes, f"dz {g}")[0][3] for g in (0, 1, 3)]
    assert heights[0] / heights[1] == pytest.approx(5 / 3)
    assert sum(heights) == pytest.approx(1.7)


def test_products_share_out_rows_or_the_summed_extent():
    forward, to_input, to_weight, to_bias = gradients.products(SIZES).axes
    assert [title(axes)[:2] for axes in (forward, to_input, to_weight, to_bias)] == ["y ", "dx", "dW", "db"]
    for axes, name, vary in ((forward, "y", 1), (to_input, "dx", 1), (to_weight, "xᵀ", 0)):
        found = [boxes(axes, f"{name} {g}")[0] for g in (0, 1, 3)]
        assert len({box[vary] for box in found}) == 3, name
        assert len({box[1 - vary] for box in found}) == 1, name
    assert hatched(to_weight, "dW") == hatched(to_bias, "db") == [2]
    assert "mode k" in texts(to_weight)
    assert "mode m" in texts(forward)
    assert not [text for text in texts(to_bias) if "mode" in text]


def test_an_expert_shows_the_worst_of_its_elements():
    want = torch.ones(3, 2, 2)
    want[1] = 0
    found = want.clone()
    found[1, 0, 0] = torch.nan
    found[1, 0, 1] = 7
    found[2, 1, 1] = 5
    figure = gradients.expert_matrices({"broken": found, "right": want}, want, [2, 0, 1])
    known = ("right", "0, right", "NaN", "wrong")
    words = [next(text for text in texts(axes) if text in known) for axes in figure.axes]
    assert words == ["right", "NaN", "wrong", "right", "0, right", "right"]
    colors = [axes.patches[0].get_facecolor() for axes in figure.axes]
    assert len(set(colors)) == 4
    assert colors[0] == colors[3] == colors[5]
    assert "broken" in texts(figure.axes[0])
    assert "expert 2\n1 token" in texts(figure.axes[5])
    with pytest.raises(ValueError, match="'small' has"):
        gradients.expert_matrices({"small": want[:2]}, want, [2, 0, 1])


def test_one_row_of_tiles_writes_and_answers_are_counted():
    left, right = gradients.one_writer((3, 4), [1.5, 2.0, 1.5], alone=1.5).axes
    assert len(boxes(left, "tile True")) == len(boxes(left, "db")) == 4
    assert {box[1] for box in boxes(left, "tile True")} == {0}
    assert len(boxes(left, "tile False")) == 8
    assert title(right) == "dots: atomics, 2 answers in 3 runs"
    dots = next(line for line in right.lines if line.get_gid() == "atomic")
    assert list(dots.get_ydata()) == [0, 0.5, 0]
