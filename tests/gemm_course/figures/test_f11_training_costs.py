"""Times are read from records; the time of a copy is drawn after that of the products."""

from __future__ import annotations

import pytest

from drawn import boxes, texts
from gemm_course.figures import f11_training_costs as training_costs
from gemm_course.lessons import records


def test_a_copy_begins_where_the_products_end():
    us = {"forward": 1.0, "dA": 1.0, "dB": 2.0, "copy": 1.0}
    (axes,) = training_costs.copied_gradients({"row": us}).axes
    assert boxes(axes, "copy")[0][0] == pytest.approx(1.0)
    assert boxes(axes, "dB")[0][2] == pytest.approx(0.5)
    assert texts(axes) == ["+25%"]


def test_a_step_has_the_fastest_of_our_kernels_and_the_copy_of_its_gradient():
    us = {
        of: {"a": {"median_us": 3.0}, "b": {"median_us": 2.0}, "peer": {"median_us": 1.0}} for of in ("forward", "dA")
    }
    row = {"title": "row", "sizes": [1, 2], "N": 100, "K": 1000, "us": us | {"dB": us["dA"]}}
    roles = {"a": {"role": "ours"}, "b": {"role": "ours"}, "c": {"role": "ours", "absent": "no"}, "peer": {"role": ""}}
    found = records.step_times({"providers": roles, "copy_tb_s": 0.4, "rows": {"r": row}})
    assert found == {"row": {"forward": 2.0, "dA": 2.0, "dB": 2.0, "copy": pytest.approx(2.0)}}


def test_gradients_are_named_by_model_and_router():
    entry = {"title": "Model: 8 over 2", "us": {"gradients": {"ptgmm": {"median_us": 2.5}}}}
    assert records.gradient_times({"rows": {"model-zipf": entry}}) == {"Model, Zipf": {"ptgmm": 2.5}}
