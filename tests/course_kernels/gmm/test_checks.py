"""The checks by themselves: names in messages, layouts by shape. ``test_api_errors`` has the table of bad arguments."""

from __future__ import annotations

import pytest
import torch

from course_kernels.gmm import checks


@pytest.mark.parametrize(("message", "ours"), [
    ("mat_a must be on a CPU or a GPU of type cuda", "lhs must be on a CPU or a GPU of type cuda"),
    ("out shares memory with mat_b", "existing_out shares memory with rhs"),
    ("offs[1] = 3 is less", "group_sizes (as ends)[1] = 3 is less"),
    ("out_dtype must be one of", "preferred_element_type must be one of"),
    ("config does not suit what is out of memory", "config does not suit what is out of memory"),
])  # fmt: skip
def test_messages_of_packed_get_our_names(message, ours):
    assert checks.in_our_names(message) == ours


def test_a_layout_is_found_by_the_shape_or_named():
    lhs, row, transposed, square = (torch.empty(s) for s in ((9, 4), (2, 4, 6), (2, 6, 4), (2, 4, 4)))
    assert checks.as_gkn(lhs, row, "auto") is row
    assert checks.as_gkn(lhs, transposed, "auto").shape == (2, 4, 6)
    assert checks.as_gkn(lhs, square, "auto") is square
    assert checks.as_gkn(lhs, square, "gnk").stride() == (16, 1, 4)
    right = torch.empty(9, 5)
    assert checks.as_km(lhs.mT, right, "auto").shape == (4, 9)
    assert checks.as_km(lhs, right, "auto").shape == (4, 9)
    square = torch.empty(9, 9)
    assert checks.as_km(square, right, "km") is square
    assert checks.as_km(square, right, "mk").stride() == (1, 9)
    single = torch.empty(1, 1)
    assert checks.as_km(single, single, "auto") is single  # its transpose is the same matrix
    with pytest.raises(ValueError, match="got 'auto' with lhs of shape"):
        checks.as_km(square.mT, right, "auto")
