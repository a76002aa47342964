"""The program of one process, against a whole model. ``distributed/test_expert_parallel`` runs its parts on four."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

import train_experts
from places import ROOT

ALONE = dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0", OMP_NUM_THREADS="1")


def test_the_program_trains_as_a_whole_model_does():
    program = [sys.executable, str(ROOT / "examples" / "train_experts.py"), "--steps", "12"]
    done = subprocess.run(program, env=os.environ | ALONE, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    torch.manual_seed(0)
    model = train_experts.Model(**train_experts.SIZES)
    count = sum(each.numel() for each in model.parameters())
    assert first == f"{count} of {count} weights are on the first rank, of 1"
    wanted = [*train_experts.train(model, train_experts.batches(12, 48, 16, 0, 1), torch.device("cpu"))]
    got = [tuple(map(float, re.fullmatch(r"step +\d+  loss (\S+)  gradient (\S+)", line).groups())) for line in lines]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=1e-3, atol=1e-5)


def test_ranks_have_different_parts_of_the_same_tokens():
    whole = [*train_experts.batches(2, 6, 4, 0, 1)]
    parts = [[*train_experts.batches(2, 6, 4, rank, 3)] for rank in range(3)]
    for step, tensors in enumerate(whole):
        for i, tensor in enumerate(tensors):
            assert torch.equal(torch.cat([part[step][i] for part in parts]), tensor)
    with pytest.raises(ValueError, match="tokens must be a multiple of the number of ranks, 4, got 6"):
        next(train_experts.batches(1, 6, 4, 0, 4))


def test_clipping_shortens_the_gradient_and_returns_its_norm():
    model = torch.nn.Linear(2, 1, bias=False)
    for most, wanted in ((1.0, [0.6, 0.8]), (7.0, [3.0, 4.0])):
        model.weight.grad = torch.tensor([[3.0, 4.0]])
        assert train_experts.clip(model, most) == pytest.approx(5.0)
        assert model.weight.grad[0].tolist() == pytest.approx(wanted)
