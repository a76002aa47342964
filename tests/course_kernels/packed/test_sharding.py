"""grouped_mm on DTensors and in FSDP2: the cases of ``tests/support/sharded.py``, in two processes that start once."""

from __future__ import annotations

import pytest
import torch

import forked
import ranks
import sharded
from course_kernels.packed import sharding

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, TWO_GPUS])]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this build of torch has no torch.distributed")
@pytest.mark.parametrize("device", DEVICES)
def test_two_processes(device):
    ranks.check(sharded.__file__, [2], device)


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
    for dims, strategies in sharding.SHARDED.items():
        for out, a, b, bias in strategies:
            for dim, forbidden in zip((out, a, b), ragged.get(dims, (None,) * 3)):
                assert dim is None or dim != forbidden
            assert (out == "+") == (a == dims[0] - 1 and b == dims[1] - 2)
            assert bias in (None, "+", 0, 1)
