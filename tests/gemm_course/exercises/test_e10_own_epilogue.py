"""Exercise 10: every draw tells likely mistakes apart; the answers of many draws are compiled in one process."""

from __future__ import annotations

import random

import pytest
import torch

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import SEEDS, drawn_for, source_of
from gemm_course.exercises import e10_own_epilogue as epilogue

pytest.importorskip("cutlass", reason="needs CuTe DSL: pip install '.[cutlass]'")


def test_the_solution_passes_whatever_is_drawn(judge, exercise, monkeypatch):
    cases = [case for seed in SEEDS[:6] for case in drawn_for(exercise, seed)]
    monkeypatch.setattr(epilogue, "draw", lambda rng: cases)
    result = judge.check(exercise, source_of("solutions", exercise))
    assert result.passed, result.text()


@pytest.mark.parametrize("seed", range(20))
def test_every_draw_tells_the_mistakes_apart(seed):
    for case in epilogue.draw(random.Random(seed)):
        sums = case.expected["sums"].double()
        results = [epilogue.silu(sums).bfloat16().double(), *(each(sums) for _, _, each in epilogue._MISTAKES)]
        same = [(i, j) for i in range(len(results)) for j in range(i) if torch.equal(results[i], results[j])]
        assert same == []
        assert case.inputs["tile_n"] % 32 == 0


def test_a_gpu_s_product_is_compared(monkeypatch):
    (case, _) = epilogue.draw(random.Random(0))
    want = epilogue.silu(case.inputs["a"].double() @ case.inputs["b"].double().T).bfloat16()
    assert list(epilogue._on_gpu(case, want)) == []
    want[3, 5] += 1
    assert [each.check for each in epilogue._on_gpu(case, want)] == ["silu"]
    assert [each.check for each in epilogue._on_gpu(case, want[:4])] == ["silu"]
