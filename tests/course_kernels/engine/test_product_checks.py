"""Checks that the APIs share; what each API refuses is in its own tests."""

from __future__ import annotations

import pytest
import torch

from course_kernels import deepgemm, grouped_mm, scaled_grouped_mm
from course_kernels.engine import plans
from course_kernels.engine.product_checks import check_num_sms

A, B, OFFS = torch.zeros(6, 8), torch.zeros(2, 8, 4), torch.tensor([2, 6])


@pytest.mark.parametrize(
    ("num_sms", "error", "words"),
    [(0, ValueError, "num_sms must be at least 1, got 0"), (-4, ValueError, "at least 1, got -4"),
     ("8", TypeError, "num_sms must be an int or None, got str"), (True, TypeError, "got bool"),
     (1.0, TypeError, "got float")],
)  # fmt: skip
def test_a_number_of_sms(num_sms, error, words):
    y = torch.full((2, 3, 4), 7.0)
    half = torch.zeros(2, 3, 8).half()
    with pytest.raises(error, match=words):
        check_num_sms(num_sms)
    with pytest.raises(error, match=words):
        grouped_mm(A, B, offs=OFFS, num_sms=num_sms)
    with pytest.raises(error, match=words):
        deepgemm(half, torch.zeros(2, 4, 8).half(), y, torch.tensor([1, 2]), num_sms=num_sms)
    assert (y == 7).all()


@pytest.fixture
def planned(monkeypatch):
    """The numbers of SMs that the plans of the test are made for."""
    found, choose = [], plans.choose

    def chosen(problem, product, out):
        found.append(problem.options.num_sms)
        return choose(problem, product, out)

    monkeypatch.setattr(plans, "plans", plans.PlanCache())
    monkeypatch.setattr(plans, "choose", chosen)
    return found


def test_products_gradients_and_operators_are_planned_for_it(planned):
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    grouped_mm(a, b, offs=OFFS, num_sms=3).sum().backward()
    assert planned == [3, 3, 3]
    grouped_mm(a, b, offs=OFFS, num_sms=5, main_grad=torch.zeros(2, 8, 4)).sum().backward()
    assert planned[3:] == [5, 5, 5]
    with torch.profiler.profile():  # through torch's dispatcher
        grouped_mm(A, B, offs=OFFS, num_sms=7)
        grouped_mm(A, B, offs=OFFS, num_sms=8, out=torch.zeros(6, 4))
    assert planned[6:] == [7, 8]


def test_products_of_float8_and_of_counted_rows_are_planned_for_it(planned):
    row, eight = torch.nn.functional.ScalingType.RowWise, torch.float8_e4m3fn
    a, b = torch.zeros(6, 16).to(eight), torch.zeros(2, 16, 16).to(eight).mT
    scaled_grouped_mm(a, b, torch.ones(6), row, torch.ones(2, 16), row, offs=OFFS.int(), num_sms=4)
    half = torch.zeros(2, 3, 8).half()
    deepgemm(half, torch.zeros(2, 4, 8).half(), torch.zeros(2, 3, 4), torch.tensor([1, 2]), num_sms=6)
    assert planned == [4, 6]
