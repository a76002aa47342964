"""Bits are at their places, those that do not fit are marked; each way to sum has its line and its name."""

from __future__ import annotations

import pytest

from drawn import boxes, texts
from gemm_course.figures import f11_rounding as rounding


def test_a_bit_too_many_is_lost_and_the_same_bit_alone_is_not():
    (axes,) = rounding.aligned_bits({"": {"so far": 2048, "next": 1, "sum": 2049, "negative": -3}}, kept=11).axes
    assert [box[0] for box in boxes(axes, "0 1")] == [0.05]
    assert [box[0] for box in boxes(axes, "1 1")] == [11.05], "the last of twelve places"
    assert not boxes(axes, "1 lost")
    assert [box[0] for box in boxes(axes, "2 lost")] == [11.05]
    assert [box[0] for box in boxes(axes, "3 1")] == [10.05, 11.05]
    assert boxes(axes, "kept") == [(0, 0, 11, 4)]
    assert {"2049", "−3", "11 bits fit"} <= set(texts(axes))


def test_errors_are_labelled_at_their_ends():
    errors = {"rising": [1e-3, 1e-2], "flat": [1e-5, 1e-5]}
    (axes,) = rounding.error_growth(errors).axes
    assert {line.get_gid(): list(line.get_ydata()) for line in axes.lines} == errors
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert heights["rising"] > heights["flat"]


def test_an_error_of_zero_is_refused():
    with pytest.raises(ValueError, match="'exact' has one that is not"):
        rounding.error_growth({"fine": [0.1], "exact": [0.1, 0.0]})
