"""Exercise 12a, the scaled epilogue: the tests of any exercise, and what the draw promises."""

from __future__ import annotations

import random

import pytest
import torch

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import source_of
from exercise_diagnoses import test_no_mutant_passes_by_luck  # noqa: F401 (stricter than the one above)
from gemm_course.exercises import manifest


@pytest.mark.parametrize("constant", ["0.0", "16000.0"])
def test_a_constant_in_place_of_a_product_earns_nothing(judge, exercise, constant):
    source = source_of("solutions", exercise).replace("(acc * scale_a[:, None] * scale_b)", f"(acc * 0 + {constant})")
    assert constant in source
    assert judge.check(exercise, source, 0, compiling=False).points == 0


def test_scaling_in_another_order_is_as_good(judge, exercise):
    source = source_of("solutions", exercise).replace(
        "(acc * scale_a[:, None] * scale_b)", "((scale_a * scale_b)[:, None] * acc)"
    )
    assert "[:, None] * acc" in source
    result = judge.check(exercise, source, 0, compiling=False)
    assert result.passed, result.text()


def test_scaled_sums_are_exact_in_float32_and_not_in_float16(exercise):
    for seed in range(20):
        for case in manifest.examiner(exercise).draw(random.Random(seed)):
            sizes = case.inputs["sizes"]
            for g, size in enumerate(sizes):
                a, b = (case.inputs[name][g].double() for name in ("a", "b"))
                sums = a[:size] @ b.T
                scale = case.inputs["scale_a"][g, :size, None].double() * case.inputs["scale_b"][g].double()
                assert ((sums * scale).float().double() == sums * scale).all()
                assert (sums < 8192).all()
                assert size == 0 or (sums.half().double() != sums).any()
                assert (sums * scale <= torch.finfo(torch.float16).max).all()
                assert case.inputs["scale_a"][g, size:].isnan().all()
            # Rows of group 0 are all there, so that its scales can be told from NaN.
            assert sizes[0] == case.inputs["a"].shape[1]
            assert any(0 < size < sizes[0] for size in sizes)


def test_one_group_has_scales_for_its_tokens_and_one_a_scale_of_its_own_that_float16_rounds(exercise):
    for seed in range(20):
        (case,) = (each for each in manifest.examiner(exercise).draw(random.Random(seed)) if each.inputs["long"])
        tokens, group = case.inputs["scale_a"], case.inputs["scale_b"]
        assert (tokens[0].half() != tokens[0]).all()
        assert group[1].half() != group[1]
