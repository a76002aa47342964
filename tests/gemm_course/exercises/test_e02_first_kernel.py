"""Exercise 02: a mistake costs the same whatever is drawn, other right answers pass, and inputs tell mistakes apart."""

from __future__ import annotations

import random
import re

import pytest
import torch

import mutants
from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import judged
from gemm_course.exercises import manifest
from gemm_course.exercises.e02_first_kernel import examine
from gemm_course.notebook import cells as submission
from places import ROOT

(SOFTMAX,) = manifest.find("02")
SEEDS = range(2)
SOLUTION = submission.of_notebook(ROOT / "solutions" / "02_first_kernel.ipynb", SOFTMAX.function)


def changed(*pairs):
    """The solution with some things written otherwise."""
    source = SOLUTION
    for old, new in pairs:
        assert old in source
        source = source.replace(old, new)
    return source


ALL_BUT = {
    "down_the_columns": {"rows"},
    "sum_of_the_block": {"rows"},
    "sum_in_half": {"rows"},
    "one_program": {"rows"},
    "width_written_out": {"rows"},
    "zero_outside": {"rows", "masked", "large"},
    "zero_wins_the_maximum": {"large"},
    "no_maximum": {"large"},
    "store_unmasked": {"store"},
}


@pytest.mark.parametrize("name", ALL_BUT)
def test_a_mistake_costs_the_same_whatever_is_drawn(judge, name):
    source = mutants.of(SOFTMAX.name)[name].source
    for seed in SEEDS:
        result = judged(judge, SOFTMAX, source, seed)
        assert {each.name for each in result.properties if each.status != "pass"} == ALL_BUT[name], result.text()
        assert result.message == ""


UNDEFINED = (', other=float("-inf"))', ")")
CHOSEN_LATER = ("    e = ", '    x = tl.where(mask, x, float("-inf"))\n    e = ')
# tl.max of float16 gives float32, so the difference is float32, too.
CONVERTED_LATE = [
    (', other=float("-inf")).to(tl.float32)', ', other=float("-inf"))'),
    ("tl.exp(x - tl.max(x, axis=1)[:, None])", "tl.exp((x - tl.max(x, axis=1)[:, None]).to(tl.float32))"),
]
LOG_SUM_EXP = [
    (
        "    e = tl.exp(x - tl.max(x, axis=1)[:, None])\n",
        "    top = tl.max(x, axis=1, keep_dims=True)\n"
        "    log_sum = top + tl.log(tl.sum(tl.exp(x - top), axis=1, keep_dims=True))\n",
    ),
    ("e / tl.sum(e, axis=1)[:, None]", "tl.exp(x - log_sum)"),
]
SCALED_FIRST = [
    (".to(tl.float32)", ".to(tl.float32) * 1.4426950408889634"),
    ("tl.exp(x", "tl.exp2(x"),
]
POWERS = ("tl.exp(x - tl.max(x, axis=1)[:, None])", "tl.exp2((x - tl.max(x, axis=1)[:, None]) * 1.4426950408889634)")


@pytest.mark.parametrize(
    "source",
    [
        changed(UNDEFINED, CHOSEN_LATER),
        changed(('float("-inf")', "-1e9")),
        changed(("tl.max(x, axis=1)[:, None]", "tl.max(x, axis=1, keep_dims=True)")),
        changed(POWERS),
        changed(*CONVERTED_LATE),
        changed(*LOG_SUM_EXP),
        changed(*SCALED_FIRST),
    ],
    ids=[
        "chosen after the load",
        "a large negative number",
        "kept dimensions",
        "powers of two",
        "converted late",
        "logarithm of the sum",
        "scaled first",
    ],
)
def test_other_ways_to_write_it_pass(judge, source):
    result = judge.check(SOFTMAX, source)
    assert result.passed, result.text()


def test_a_constant_earns_nothing(judge):
    result = judge.check(SOFTMAX, changed(("e / tl.sum(e, axis=1)[:, None]", "e * 0 + 0.25")), compiling=False)
    assert result.points == 0
    assert re.search(r"there is 0\.25, not 0\.\d+", result.message)


@pytest.mark.parametrize("number", [0.0, -1.0, 2.5])
def test_the_number_that_elements_outside_count_as_is_found(judge, number):
    result = judge.check(SOFTMAX, changed(('float("-inf")', str(number))), compiling=False)
    (message,) = (each.message for each in result.properties if each.name == "masked")
    assert f"each element outside of X counts as {number:.3g} and adds" in message


def test_float32_is_far_within_the_tolerance_and_float16_far_outside():
    for seed in range(50):
        for case in examine.draw(random.Random(seed)):
            x = case.inputs["x"]
            want = torch.softmax(x.double(), dim=1)
            told = want > examine.TINY
            assert ((torch.softmax(x.float(), dim=1) - want).abs() / want)[told].max() < examine.TOLERANCE / 4
            if "rows" in case.checks:
                assert examine.tolerance(x.double()).max() < 1.1 * examine.TOLERANCE
                assert ((want.half() - want).abs() / want)[told].max() > 4 * examine.TOLERANCE
                assert (_with_differences_in(torch.float16, x) - want).abs().div(want)[told].max() > 1e-4


def test_products_in_float32_are_within_the_tolerance():
    for seed in range(50):
        for case in examine.draw(random.Random(seed)):
            x = case.inputs["x"]
            want = torch.softmax(x.double(), dim=1)
            scaled = x.float() * 1.4426950408889634
            e = torch.exp2(scaled - scaled.amax(1, keepdim=True))
            for got in (e / e.sum(1, keepdim=True), torch.exp(x.float() - x.float().logsumexp(1, keepdim=True))):
                off, told = (got - want).abs() / want / examine.tolerance(x.double()), want > examine.TINY
                assert off[told].max() < 1


def _with_differences_in(dtype, x):
    return torch.softmax((x - x.amax(1, keepdim=True)).to(dtype).double(), dim=1)
