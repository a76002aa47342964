"""A watched matrix's memory: what kernels find there, and what Python code sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gemm_course.runner.regions import Region


def region(values, output=False):
    found = Region("A", values, values, output)
    found.remember()
    return found


def test_floating_point_numbers_are_hidden_in_a_random_order():
    values = torch.arange(64.0)
    first, second = (region(values.clone()) for _ in range(2))
    assert first.view.tolist() != second.view.tolist() != values.tolist()
    assert sorted(first.view.tolist()) == sorted(second.view.tolist()) == values.tolist()
    whole = torch.arange(64)
    assert torch.equal(region(whole.clone()).view, whole), "addresses and sizes are for Python code, too"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_nan_stays_where_it_is(dtype):
    values = torch.tensor([1, 2, torch.nan, 3, 4, 5]).to(dtype)
    found = region(values.clone())
    assert found.view.float().isnan().tolist() == [False, False, True, False, False, False]
    found.disclose()
    assert torch.equal(found.view.float().nan_to_num(), values.float().nan_to_num())


def test_a_kernel_finds_its_numbers_and_python_code_none_of_those_that_it_stores():
    found, some = region(torch.arange(1.0, 33.0)), np.array([3, 4])
    hidden = found.view.clone()
    assert found.show(some) == 0
    assert found.view[3:5].tolist() == [4, 5]
    found.view[3] = 40  # as a kernel would
    found.hide(some)
    assert torch.equal(found.view, hidden)
    found.disclose()
    assert found.view.tolist() == [1, 2, 3, 40, *range(5, 33)]


def test_what_python_code_changes_is_counted_and_taken_back_but_for_zeros():
    found, some = region(torch.arange(1.0, 33.0)), np.arange(4)
    found.view[1], found.view[2] = 0, 77
    assert found.show(some) == 1
    assert found.view[:4].tolist() == [1, 0, 3, 4]
    found.hide(some)
    assert found.show(some) == 0


def test_an_output_that_is_overwritten_after_a_store_says_so():
    for number, overwritten in ((5.0, True), (0.0, False)):
        found = region(torch.full((4,), torch.nan), output=True)
        found.view[1] = 3
        found.counts[1] = 1
        found.hide(np.array([1]))
        assert found.view.isnan().all()
        found.view[1] = number
        found.disclose()
        assert found.overwritten is overwritten
        assert found.view[1] == number


def test_an_input_is_unread_until_a_kernel_touches_it():
    found = region(torch.ones(3))
    assert found.unread
    found.hide(np.array([0]))
    assert not found.unread
    assert not region(torch.ones(3), output=True).unread
    assert not region(torch.ones(3, dtype=torch.int32)).unread
    assert not region(torch.ones(0)).unread
