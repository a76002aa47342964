"""The modes' figure cuts the shared dimension; undefined rows are counted."""

from __future__ import annotations

import pytest
import torch

from course_kernels.dtypes import MODES
from gemm_course.figures import f08_modes as modes


def matrices(axes, name):
    """(x, y, width, height) of a matrix's groups."""
    found = [patch for patch in axes.patches if patch.get_gid().startswith(name)]
    found.sort(key=lambda patch: patch.get_gid())
    return [(*patch.get_xy(), patch.get_width(), patch.get_height()) for patch in found]


def cut(boxes):
    """Along what the groups of a matrix lie side by side; "stack" where they are matrices of their own."""
    if len({box[2:] for box in boxes}) == 1:
        return "stack"
    return "rows" if len({box[0] for box in boxes}) == 1 else "columns"


def test_each_mode_cuts_what_its_definition_says():
    figure = modes.four_modes({"m": "forward"})
    drawn = {
        mode: [cut(matrices(axes, f"{mode} {name}")) for name in "ABC"]
        for mode, axes in zip(("m", "n", "k", "batch"), figure.axes)
    }
    assert drawn == {
        "m": ["rows", "stack", "rows"],
        "n": ["stack", "columns", "columns"],
        "k": ["columns", "rows", "stack"],
        "batch": ["stack", "stack", "stack"],
    }
    assert set(drawn) == set(MODES)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["m: forward", "n", "k", "batch"]


def test_four_modes_refuses_a_caption_of_no_mode():
    with pytest.raises(ValueError, match="modes m, n, k, batch, got x"):
        modes.four_modes({"x": ""})


def test_undefined_rows_are_red_and_counted():
    numbers = torch.ones(6, 2)
    broken, zeros = numbers.clone(), numbers.clone()
    broken[4, 1] = broken[5] = torch.nan
    zeros[4:] = 0
    figure = modes.undefined_rows({"them": [broken], "us": [zeros]}, [3, 1], ["result"])
    left, right = figure.axes
    bad = [patch.get_xy()[1] for patch in left.patches if patch.get_gid() == "bad"]
    assert bad == [4, 5]
    assert not [patch for patch in right.patches if patch.get_gid() == "bad"]
    assert left.get_title(loc="left") == "them\nresult\n2 rows undefined"
    assert right.get_title(loc="left") == "us\nresult\n0 rows undefined"
    assert set(left.lines[0].get_ydata()) == {4}
    colors = [patch.get_facecolor() for patch in right.patches]
    assert colors[3] != colors[4], "zeros look different from numbers"
