"""Expert parallelism: the cases of ``tests/support``, in two and four processes that start once for all of them."""

from __future__ import annotations

import functools

import pytest
import torch

import expert_parallel_cases
import expert_parallel_training
import ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this build of torch has no distributed")


def on_gpus(size: int):
    fewer = pytest.mark.skipif(torch.cuda.device_count() < size, reason=f"needs {size} GPUs")
    return pytest.param(size, "cuda", marks=[pytest.mark.gpu, fewer])


WORLDS = [(2, "cpu"), (4, "cpu"), on_gpus(2), on_gpus(4)]
found = functools.cache(ranks.found)


@pytest.mark.parametrize("case", expert_parallel_cases.CASES)
@pytest.mark.parametrize("size, device", WORLDS)
def test_layer(size, device, case):
    results = found(expert_parallel_cases.__file__, size, device)
    assert results[case] is True, results[case]


@pytest.mark.parametrize("case", expert_parallel_cases.ON_GPUS)
@pytest.mark.parametrize("size, device", WORLDS[2:])
def test_layer_on_gpus(size, device, case):
    results = found(expert_parallel_cases.__file__, size, device)
    assert results[case] is True, results[case]


@pytest.mark.parametrize("case", expert_parallel_training.CASES)
@pytest.mark.parametrize("size, device", WORLDS[1:])
def test_training(size, device, case):
    results = found(expert_parallel_training.__file__, size, device)
    assert results[case] is True, results[case]
