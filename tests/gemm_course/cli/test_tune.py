"""`course tune`: lists, refuses wrong usage, measures, writes and reports."""

from __future__ import annotations

import pytest
import torch

from course_kernels import runtime
from course_kernels.bench import record
from course_kernels.bench.tuning import tune
from course_kernels.engine.tuning import Gpu, gpu_constants
from course_kernels.runtime import Device
from gemm_course.cli import app as command
from gemm_course.cli import tune as tune_command
from tuning_shapes import PROVENANCE


def test_the_command_lists_and_refuses(capsys, tmp_path):
    assert command.SUBCOMMANDS["tune"].module == tune_command.__name__
    assert command.main(["tune", "--list"]) == tune_command.OK
    listed = capsys.readouterr().out
    assert "forward fp8 blocks" in listed
    assert "mixtral-8x7b-64-zipf-up" in listed
    for options in (["--limit-seconds", "0"], ["--out", str(tmp_path / "absent" / "x.json")], ["--triton-only"]):
        assert command.main(["tune", *options]) == tune_command.USAGE
        assert options[0].removeprefix("--").split("-")[0] in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert command.main(["tune", "--out", str(tmp_path / "x.json")]) == tune_command.CANNOT
        assert "torch sees none here" in capsys.readouterr().err
        assert not (tmp_path / "x.json").exists()


@pytest.fixture
def on_a_gpu(monkeypatch, tmp_path):
    """A GPU whose measurement is a stand-in. Returns what was asked of it."""
    asked = {}

    def stand_in(out, gpu, provenance, seconds, record, triton_only, tell):
        asked.update(out=out, gpu=gpu, commit=provenance["commit"], seconds=seconds, record=record, only=triton_only)
        tell("a line")
        return asked.get("failed", {})

    monkeypatch.setattr(tune, "tune", stand_in)
    monkeypatch.setattr(gpu_constants, "CONSTANTS", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100 PCIe")
    monkeypatch.setattr(runtime, "supports_bf16", lambda device: True)
    monkeypatch.setattr(Device, "of", classmethod(lambda cls, device: cls((8, 0), (8, 0), 108, None, False, 1.5551)))
    monkeypatch.setattr(record, "provenance", lambda commit_id=None: {**PROVENANCE, "commit": commit_id})
    return asked


def test_the_constants_of_the_gpu_at_hand_are_measured(on_a_gpu, tmp_path, capsys):
    assert command.main(["tune", "--commit", "abc"]) == tune_command.OK
    assert on_a_gpu == {
        "out": tmp_path / "a100-pcie.json", "gpu": Gpu("sm_80", 108, 1.555), "commit": "abc",
        "seconds": tune.SECONDS, "record": None, "only": False,
    }  # fmt: skip
    assert capsys.readouterr().out == f"a line\nwritten: {tmp_path / 'a100-pcie.json'}\n"
    mine, times = tmp_path / "mine.json", tmp_path / "all.json"
    options = ["--out", str(mine), "--record", str(times), "--limit-seconds", "30", "--triton-only"]
    assert command.main(["tune", *options]) == tune_command.OK
    assert [on_a_gpu[name] for name in ("out", "record", "seconds", "only")] == [mine, times, 30, True]


def test_what_failed_ends_the_command_with_a_failure(on_a_gpu, capsys):
    on_a_gpu["failed"] = {"row, forward": {"cute x": "ValueError: wrong"}}
    assert command.main(["tune"]) == tune_command.FAILED
    assert "row, forward, cute x: ValueError: wrong" in capsys.readouterr().err


def test_a_gpu_that_does_not_multiply_bfloat16_is_refused(on_a_gpu, monkeypatch, capsys):
    monkeypatch.setattr(runtime, "supports_bf16", lambda device: False)
    assert command.main(["tune"]) == tune_command.CANNOT
    assert "rules serve it" in capsys.readouterr().err
