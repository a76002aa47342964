"""Expert parallelism: the cases of ``tests/support``, in two and then in four processes, forked from one on a CPU."""

from __future__ import annotations

import pytest
import torch

import expert_parallel_cases
import expert_parallel_training
import ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this build of torch has no distributed")


def on_gpus(size: int):
    fewer = pytest.mark.skipif(torch.cuda.device_count() < size, reason=f"needs {size} GPUs")
    return pytest.param([size], "cuda", marks=[pytest.mark.gpu, fewer])


WORLDS = [([2, 4], "cpu"), on_gpus(2), on_gpus(4)]


@pytest.mark.parametrize("sizes, device", WORLDS, ids=str)
def test_layer(sizes, device):
    ranks.check(expert_parallel_cases.__file__, sizes, device)


@pytest.mark.parametrize("sizes, device", WORLDS, ids=str)
def test_training(sizes, device):
    ranks.check(expert_parallel_training.__file__, sizes, device)


def test_every_mistake_of_every_case_is_told(tmp_path):
    cases = "def right(world):\n    return True\ndef other(world):\n    return f'rank {world.rank} of {world.size}'\n"
    main = "import ranks\nif __name__ == '__main__':\n    ranks.main(dict(right=right, other=other, after=dict))\n"
    module = tmp_path / "cases.py"
    module.write_text(cases + main)
    told = [rf"other: rank 0 of {size}: rank 0 of {size}\nafter: rank 0 of {size}: Traceback" for size in (2, 3)]
    with pytest.raises(AssertionError, match=rf"(?s){told[0]}.*\n{told[1]}"):
        ranks.check(str(module), [2, 3], "cpu")
