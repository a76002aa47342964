"""Checks of arguments that every API makes; what each API refuses is in its own tests."""

from __future__ import annotations

import pytest
import torch

from course_kernels.type_checks import check_dense, check_flags, transposed_hint


@pytest.mark.parametrize(
    ("value", "got"),
    [(3, "got int"), (torch.Tensor, "got the class Tensor"), (torch.eye(2).to_sparse(), "got layout torch.sparse_coo"),
     (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "got layout nested")],
    ids=["a number", "a class", "sparse", "nested"],
)  # fmt: skip
def test_a_tensor_with_strides(value, got):
    check_dense("mat_a", torch.zeros(2))
    with pytest.raises(TypeError, match=f"^mat_a must be a .*{got}$"):
        check_dense("mat_a", value)


@pytest.mark.parametrize("value", ["no", 0, None, torch.tensor(True)], ids=repr)
def test_flags_are_true_or_false(value):
    check_flags(check=True, accumulate=False)
    with pytest.raises(TypeError, match=r"^accumulate must be True or False, got "):
        check_flags(check=True, accumulate=value)


def test_a_hint_is_given_where_a_transpose_would_fit():
    matrix = torch.empty(2, 3, 4)
    assert transposed_hint("mat_b", matrix, 4) == ". It has K columns: pass mat_b.mT"
    assert transposed_hint("mat_b", matrix, 3) == ""
