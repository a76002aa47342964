"""grouped_mm on DTensors and in FSDP2: the cases of ``tests/support/sharded.py``, in two processes that start once."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest
import torch

import forked
import sharded
from course_kernels.packed import sharding

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, TWO_GPUS])]


@functools.cache
def found(device):
    """The result of each case; all run in two processes."""
    if not torch.distributed.is_available():
        pytest.skip("this build of torch has no torch.distributed")
    done = subprocess.run(
        [sys.executable, sharded.__file__, device],
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", sharded.CASES)
@pytest.mark.parametrize("device", DEVICES)
def test_two_processes(device, case):
    assert found(device)[case] is True, found(device)[case]


def test_plain_tensors_do_not_import_torch_distributed():
    program = (
        "import sys, torch, course_kernels\n"
        "a, b = torch.ones(4, 4, requires_grad=True), torch.ones(1, 4, 4)\n"
        "offs = torch.tensor([4], dtype=torch.int32)\n"
        "course_kernels.grouped_mm(a, b, offs=offs, backend='torch').sum().backward()\n"
        "course_kernels.grouped_mm(a.to('meta'), b.to('meta'), offs=offs.to('meta'))\n"
        "assert 'torch.distributed.tensor' not in sys.modules\n"
    )
    done = forked.run(program)
    assert done.returncode == 0, done.stderr


def test_strategies_shard_every_dimension_but_the_ragged_one():
    """In the result, mat_a and mat_b. Sharding K always gives a partial sum, and nothing else does."""
    ragged = {(2, 3): (0, 0, None), (3, 2): (1, None, 1), (2, 2): (None, 1, 0)}
    for ranks, strategies in sharding.SHARDED.items():
        for out, a, b, bias in strategies:
            for dim, forbidden in zip((out, a, b), ragged.get(ranks, (None,) * 3)):
                assert dim is None or dim != forbidden
            assert (out == "+") == (a == ranks[0] - 1 and b == ranks[1] - 2)
            assert bias in (None, "+", 0, 1)
