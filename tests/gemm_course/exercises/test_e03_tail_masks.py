"""Exercise 03: what one mistake costs does not depend on the draw, and its picture shows what its message says."""

from __future__ import annotations

import random
import re

import pytest
import torch

import mutants
from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import judged
from gemm_course.exercises import manifest
from gemm_course.notebook import cells as submission
from places import ROOT

(MASKS,) = manifest.find("03")
SEEDS = range(2)
SOLUTION = submission.of_notebook(ROOT / "solutions" / "03_tail_masks.ipynb", MASKS.function)


def changed(old, new):
    """The solution with one thing written otherwise."""
    assert old in SOLUTION
    return SOLUTION.replace(old, new)


ALL_BUT = {
    "rounded_to_half": {"tiles"},
    "transposed_twice": {"tiles"},
    "sum_begun_again": {"tiles"},
    "stored_before_the_product": {"tiles"},
    "compared_with_the_rest": {"tiles", "tail"},
    "last_column_not_loaded": {"tiles", "loads"},
    "ones_left_in": {"tiles", "zeros"},
    "store_unmasked": {"store"},
}


@pytest.mark.parametrize("name", ALL_BUT)
def test_a_mistake_costs_the_same_whatever_is_drawn(judge, name):
    for seed in SEEDS:
        result = judged(judge, MASKS, mutants.of(MASKS.name)[name].source, seed)
        assert {each.name for each in result.properties if each.status != "pass"} == ALL_BUT[name], result.text()
        assert result.message == ""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (changed("acc.to(", "(acc + 1.0 * cols[None, :]).to("), r"tile \(0, 0\) of C is wrong: .* 4 tiles of 4"),
        (changed("acc.to(", "(acc * 0 + 5000.0).to("), r"there is 5000, not \d+"),
        (changed("acc = tl.dot(tl.trans(a), b, acc)", "acc += 0.0"), "C is 0 everywhere"),
    ],
    ids=["wrong by something else", "a constant", "zeros"],
)
def test_masks_of_a_product_that_is_no_tile_of_c_earn_nothing(judge, source, says):
    for seed in SEEDS:
        result = judge.check(MASKS, source, seed, compiling=False)
        assert re.search(says, result.message), result.text()
        assert "pass" not in {each.status for each in result.properties if each.name != "compiles"}


def test_a_value_chosen_after_the_load_is_as_good_as_other(judge):
    mask = "(depth[:, None] < K) & (rows[None, :] < M)"
    source = changed(f"mask={mask}, other=0.0)", f"mask={mask})\n        a = tl.where({mask}, a, 0.0)")
    result = judge.check(MASKS, source)
    assert result.passed, result.text()


def test_the_picture_shows_where_the_message_says_that_something_was_written(judge):
    source = changed("mask=(rows[:, None] < M) & (cols[None, :] < N))", "mask=rows[:, None] < M)")
    result = judge.check(MASKS, source, compiling=False)
    (message,) = (each.message for each in result.properties if each.name == "store")
    column = int(re.search(r"writes column (\d+) of C", message)[1])
    ((rows, columns),) = (panel["shape"] for panel in result.panels)
    assert column == columns
    assert result.panels[0]["outside"] == [[0, columns, rows, -columns % 16]]


def test_float16_holds_no_tile_of_the_larger_inputs():
    for seed in SEEDS:
        for case in manifest.examiner(MASKS).draw(random.Random(seed))[:3]:
            a, b = (case.inputs[name].double() for name in "ab")
            want = a.T @ b
            assert want.min() > 2048
            assert want.max() < torch.finfo(torch.float16).max
            assert (want.half().double() != want).double().mean() > 0.5
