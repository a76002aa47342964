"""What the measurement of expert parallelism reports. ``distributed/test_expert_parallel`` runs it, as the case
``benchmark``."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import expert_parallel
from course_kernels.bench import zoo
from expert_parallel import TOGETHER, TOKENS, Case, Sizes, cases, equal_splits, imbalance, rows, worst_error
from run import has_measured


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
        rows()


@pytest.mark.parametrize("gpus, ranks", [(2, 2), (3, 2), (4, 4), (9, 8)])
def test_the_record_has_cases_for_the_number_of_gpus(monkeypatch, gpus, ranks):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert {case.ranks for case in cases()} == {ranks}
    assert Case(ranks, "qwen3-30b-a3b", TOGETHER // ranks) in cases()
    assert Case(ranks, "mixtral-8x7b", 8192) in cases()
    assert len(set(cases())) == len(cases())


PROGRAM = """
import json, sys
print("a library's word")
for case in sys.argv[1:]:
    model, tokens = case.split(":")
    row = dict(ranks=RANKS, model=model, tokens=int(tokens), routing="zipf", way="ours", forward_us=1e3, both_us=None)
    print(json.dumps([row]), flush=True)
sys.exit(RANKS == 4)
"""


def test_rows_are_kept_after_each_case(monkeypatch, capsys):
    """Also those before an error. The program itself runs in the case ``benchmark``."""
    started, kept = subprocess.Popen, []

    def program(command, **how):
        assert command[1:4] == ["-m", "torch.distributed.run", "--standalone"]
        ranks, its_cases = command[command.index("--nproc-per-node") + 1], command[command.index("--json") + 1 :]
        return started([sys.executable, "-c", PROGRAM.replace("RANKS", ranks), *its_cases], **how)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(subprocess, "Popen", program)
    with pytest.raises(RuntimeError, match="with 4 GPUs ended with exit code 1"):
        rows(keep=lambda found: kept.append(found.as_json()["rows"]))
    assert [len(each) for each in kept] == [*range(1, len(cases()) + 1)]
    assert all(has_measured(row, case) for row, case in zip(kept[-1], cases(), strict=True))
    printed = capsys.readouterr().out
    assert "a library's word\n" in printed
    assert printed.count("1.000") == len(cases())


def test_each_rank_tells_what_it_has_loaded_before_a_case_is_kept(monkeypatch):
    """Rows are kept case by case, with what they depend on: files of the ranks, not of the process that starts them."""
    done = []
    for name, stand_in in (("init_process_group", print), ("destroy_process_group", print), ("get_rank", lambda: 0)):
        monkeypatch.setattr(expert_parallel.dist, name, stand_in)
    monkeypatch.setattr(expert_parallel, "rows_of", lambda *case: done.append("measured") or [])
    monkeypatch.setattr(expert_parallel.loaded, "share", lambda: done.append("told"))
    monkeypatch.setattr(expert_parallel.json, "dumps", lambda rows: done.append("kept") or "[]")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["expert_parallel.py", "--json", "qwen3-30b-a3b:8", "mixtral-8x7b:8"])
    expert_parallel.main()
    assert done == ["measured", "told", "kept"] * 2
