"""The fuzzing program: numbered cases, each the same again, alike in hundreds; a mismatch says how to have it again."""

from __future__ import annotations

import pytest

import fuzz
from course_kernels import runtime

TINY = dict(largest=20, most_groups=3)


def divisibility(extent):
    return extent if extent < 2 else min(16, extent & -extent)


def test_cases_are_numbered_and_vary_within_what_kernels_are_compiled_for():
    drawn = list(fuzz.cases(150, 500))
    assert [case.seed for case in drawn] == list(range(150, 650))
    assert drawn[7:9] == list(fuzz.cases(157, 2))
    assert len({(case.sizes, case.M, case.N, case.K) for case in drawn}) > 300
    for number in range(200, 600, fuzz.ALIKE):
        alike = list(fuzz.cases(number, fuzz.ALIKE))
        same = ("mode", "dtype", "out_dtype", "layout_a", "layout_b", "layout_out", "bias", "offs_dtype")
        assert all(len({getattr(case, name) for case in alike}) == 1 for name in same)
        for extent in ("M", "N", "K"):
            assert len({divisibility(getattr(case, extent)) for case in alike}) == 1
        totals = {divisibility(sum(case.sizes) + case.tail_size) for case in alike if case.mode != "batch"}
        assert len(totals - {0, 1}) <= 1


@pytest.mark.skipif(runtime.mode() == "gpu", reason="the program itself is run there")
def test_runs_in_the_interpreter():
    numbers = range(0, 2000, fuzz.ALIKE)  # one of each kind: consecutive ones have one mode
    found = [fuzz.fuzz(1, number, **TINY, workers=1) for number in numbers]
    assert sum(record["count"] for record in found) == len(numbers)
    assert {mode for record in found for mode in record["modes"]} == {"m", "n", "k", "batch"}
    assert all(record["mismatches"] == 0 for record in found)


def test_counts_and_jobs_that_begin_within_a_hundred(monkeypatch):
    seen = []
    monkeypatch.setattr(fuzz, "check", lambda case, function, device: seen.append(case.seed))
    record = fuzz.fuzz(230, 70, **TINY, workers=1)
    assert seen == list(range(70, 300))
    assert record["count"] == sum(record["modes"].values()) == sum(record["dtypes"].values()) == 230
    assert record["seed"] == 70


@pytest.mark.parametrize("error, raised", [(AssertionError, "mismatch"), (KeyError, "failed")])
def test_what_goes_wrong_says_how_to_have_it_again(monkeypatch, error, raised):
    def check(case, function, device):
        if case.seed == 13:
            raise error("out of order")

    monkeypatch.setattr(fuzz, "check", check)
    wanted = AssertionError if error is AssertionError else RuntimeError
    text = rf"(?s){raised}, .*--count 1 --seed 13 --largest 20 --most-groups 3 --backend triton\n.*out of order"
    with pytest.raises(wanted, match=text):
        fuzz.fuzz(20, 0, **TINY, workers=1)
