"""The figures count the strips that each die reads, and draw the time of a copy after that of the products."""

from __future__ import annotations

import pytest

from drawn import boxes, texts
from gemm_course.figures import training_costs


def test_strips_of_both_operands_are_counted():
    assert training_costs.strips_read([[0, 1], [0, 1]]) == {0: 3, 1: 3}
    assert training_costs.strips_read([[0, 0], [0, 0]]) == {0: 4}
    assert training_costs.strips_read([[1, 0, 1]]) == {0: 2, 1: 3}


def test_dies_show_the_strips_of_one():
    owners = [[0, 0, 1], [1, 1, 1]]
    (axes,) = training_costs.dies({"": owners}).axes
    assert len(boxes(axes, "die 0")) == 2
    assert len(boxes(axes, "die 1")) == 4
    assert [len(boxes(axes, f"A {used}")) for used in (True, False)] == [1, 1]
    assert [len(boxes(axes, f"B {used}")) for used in (True, False)] == [2, 1]
    assert "die 0 reads 1 strip of A + 2 of B = 3" in texts(axes)


def test_a_copy_begins_where_the_products_end():
    us = {"forward": 1.0, "dA": 1.0, "dB": 2.0, "copy": 1.0}
    (axes,) = training_costs.copied_gradients({"row": us}).axes
    assert boxes(axes, "copy")[0][0] == pytest.approx(1.0)
    assert boxes(axes, "dB")[0][2] == pytest.approx(0.5)
    assert texts(axes) == ["+25%"]
