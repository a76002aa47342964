"""Exercise 10, SiLU in an epilogue: the tests of any exercise, and what a GPU computed is compared."""

from __future__ import annotations

import random

import pytest

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from gemm_course.exercises.e10_own_epilogue import examine as epilogue

pytest.importorskip("cutlass", reason="needs CuTe DSL: pip install '.[cutlass]'")


def test_a_gpu_s_product_is_compared(monkeypatch):
    (case, _) = epilogue.draw(random.Random(0))
    want = epilogue.silu(case.inputs["a"].double() @ case.inputs["b"].double().T).bfloat16()
    assert list(epilogue._on_gpu(case, want)) == []
    want[3, 5] += 1
    assert [each.check for each in epilogue._on_gpu(case, want)] == ["silu"]
    assert [each.check for each in epilogue._on_gpu(case, want[:4])] == ["silu"]
