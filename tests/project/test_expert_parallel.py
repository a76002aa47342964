"""What the measurement of expert parallelism reports. ``distributed/test_expert_parallel`` runs it, as the case
``benchmark``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from course_kernels.bench import zoo
from expert_parallel import TOKENS, Sizes, equal_splits, imbalance, record_of_gpus, worst_error


def test_what_is_reported():
    assert imbalance(((3, 1), (1, 3))) == 1.0
    assert imbalance(((4, 0), (4, 0))) == 2.0
    assert worst_error([torch.tensor([1.0, 3.0])], [torch.tensor([1.0, 4.0])]) == 0.25


def test_sizes_are_those_of_the_models():
    assert Sizes.of("qwen3-30b-a3b")[:4] == (2048, 768, 128, 8)
    assert set(TOKENS) <= {model.name for model in zoo.MODELS}


def test_splits_are_equal_and_as_many_rows():
    landing, sent = equal_splits(((3, 1), (5, 0)), 4, torch.float32, torch.device("cpu"))
    assert sent.shape == landing.shape == (6, 4), "9 rows, in four pairs: three each, and two pairs from each rank"


def test_a_record_needs_two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match="two GPUs or more"):
        record_of_gpus()


def test_the_record_has_a_run_for_each_number_of_gpus(monkeypatch):
    """The program itself runs in the case ``benchmark`` of ``distributed/test_expert_parallel``."""
    asked = []

    def run(command, check):
        assert check
        assert command[1:4] == ["-m", "torch.distributed.run", "--standalone"]
        asked.append(int(command[command.index("--nproc-per-node") + 1]))
        Path(command[-1]).write_text(json.dumps(dict(ranks=asked[-1], rows=[])), encoding="utf-8")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(subprocess, "run", run)
    assert record_of_gpus() == dict(runs=[dict(ranks=2, rows=[]), dict(ranks=4, rows=[])])
