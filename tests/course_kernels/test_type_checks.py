"""Checks of arguments that every API makes; what each API refuses is in its own tests."""

from __future__ import annotations

import pytest
import torch

from course_kernels.dtypes import MAX_EXTENT
from course_kernels.type_checks import check_dense, check_extents, check_flags, is_number, is_symbol, transposed_hint


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


def test_extents_that_kernels_can_count():
    check_extents("mat_a", (MAX_EXTENT, 0))
    with pytest.raises(ValueError, match=r"^mat_a must have extents below 2\*\*31 - 2\*\*16, got shape \(2, 21"):
        check_extents("mat_a", (2, MAX_EXTENT + 1))


@pytest.mark.parametrize("trace", ["eager", "dynamo", "make_fx"])
def test_an_extent_is_a_number_or_a_symbol(trace):
    found = []

    def asks(x):
        found.append((is_number(x.shape[0]), is_number(x.shape[1])))
        assert [is_symbol(each) for each in x.shape] == [not each for each in found[-1]]
        check_extents("x", x.shape)  # puts no bound on a symbol
        return x + 1

    x = torch.ones(3, 4)
    if trace == "eager":
        asks(x)
    elif trace == "make_fx":
        torch.fx.experimental.proxy_tensor.make_fx(asks, tracing_mode="symbolic")(x)
    else:
        torch._dynamo.reset()
        torch._dynamo.mark_dynamic(x, 0)
        torch.compile(asks, backend="eager", fullgraph=True)(x)
    assert found == {"eager": [(True, True)], "dynamo": [(False, True)], "make_fx": [(False, False)]}[trace]


def test_a_hint_is_given_where_a_transpose_would_fit():
    matrix = torch.empty(2, 3, 4)
    assert transposed_hint("mat_b", matrix, 4) == ". It has K columns: pass mat_b.mT"
    assert transposed_hint("mat_b", matrix, 3) == ""
