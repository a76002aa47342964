"""`course tune`: lists, refuses wrong usage, measures, writes and reports."""

from __future__ import annotations

import json

import pytest
import torch
from tuner_stand_in import PROVENANCE, Fake

from course_kernels.bench import record, time_fit, tune_gpu
from course_kernels.engine.hopper import cute
from course_kernels.engine.tuning import lookup as tuned
from course_kernels.engine.tuning import time_model
from course_kernels.runtime import Device
from gemm_course.cli import app as command
from gemm_course.cli import tune as tune_command


def test_the_command_lists_and_refuses(capsys, tmp_path):
    assert command.SUBCOMMANDS["tune"].module == tune_command.__name__
    assert command.main(["tune", "--list", "--rows", "decode32"]) == tune_command.OK
    listed = capsys.readouterr().out
    assert "decode32-dB" in listed
    assert "32 groups of 32×8192×2048" in listed
    for options in (["--repeats", "1"], ["--dtypes", "int8"], ["--rows", "nothing"], ["--limit-seconds", "0"],
                    ["--out", str(tmp_path / "absent" / "x.json")]):  # fmt: skip
        assert command.main(["tune", *options]) == tune_command.USAGE
        assert options[0].removeprefix("--").split("-")[0] in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert command.main(["tune", "--quick", "--out", str(tmp_path / "x.json")]) == tune_command.CANNOT
        assert "torch sees none here" in capsys.readouterr().err
        assert not (tmp_path / "x.json").exists()


def test_the_command_measures_writes_and_reports(monkeypatch, tmp_path, capsys):
    fake = Fake(failing=lambda i: i == 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(Device, "of", classmethod(lambda cls, device: cls((9, 0), (9, 0), 132, None, True)))
    monkeypatch.setattr(record, "provenance", lambda commit_id=None: {**PROVENANCE, "commit": commit_id})
    monkeypatch.setattr(tune_gpu, "compile_ahead", lambda cases: print(f"{len(cases)} ahead"))
    monkeypatch.setattr(tune_gpu, "measure", lambda case, configs, repeats: fake(case, configs))
    monkeypatch.setattr(tuned, "TABLES", tmp_path)
    options = ["tune", "--quick", "--commit", "abc", "--ops", "grouped_mm"]
    assert command.main(options) == tune_command.FAILED
    printed = capsys.readouterr()
    assert "8 ahead" in printed.out
    assert "8 buckets measured, 0 kept, 0 left" in printed.out
    assert "wrong, on purpose" in printed.err
    assert json.loads((tmp_path / "sm_90.json").read_text())["provenance"]["commit"] == "abc"
    fake.failing = None
    assert command.main(options) == tune_command.OK
    assert "0 buckets measured, 8 kept" in capsys.readouterr().out


def test_constants_are_listed_and_options_of_the_table_are_refused(capsys):
    assert command.main(["tune", "--model", "--list"]) == tune_command.OK
    listed = capsys.readouterr().out
    assert "forward fp8 blocks: " in listed
    assert "mixtral-8x7b-64-zipf-up" in listed
    assert command.main(["tune", "--model", "--rows", "decode", "--quick"]) == tune_command.USAGE
    assert "--rows, --quick: for the table alone" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert command.main(["tune", "--model"]) == tune_command.CANNOT
        assert "torch sees none here" in capsys.readouterr().err


@pytest.fixture
def on_hopper(monkeypatch, tmp_path):
    """A GPU whose measurement is a stand-in. Returns what was asked of it."""
    asked = {}

    def tune(out, gpu, provenance, seconds, record, tell):
        asked.update(out=out, gpu=gpu, commit=provenance["commit"], seconds=seconds, record=record)
        tell("a line")
        return asked.get("failed", {})

    monkeypatch.setattr(time_fit, "tune", tune)
    monkeypatch.setattr(time_model, "CONSTANTS", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 PCIe")
    monkeypatch.setattr(cute, "runs_on", lambda device: True)
    monkeypatch.setattr(cute, "installed", lambda: True)
    monkeypatch.setattr(Device, "of", classmethod(lambda cls, device: cls((9, 0), (9, 0), 114, None, True, 2.0391)))
    monkeypatch.setattr(record, "provenance", lambda commit_id=None: {**PROVENANCE, "commit": commit_id})
    return asked


def test_on_hopper_the_constants_of_its_model_are_measured(on_hopper, tmp_path, capsys):
    assert command.main(["tune", "--commit", "abc"]) == tune_command.OK
    assert on_hopper == {
        "out": tmp_path / "h100-pcie.json", "gpu": time_model.Gpu("sm_90", 114, 2.039), "commit": "abc",
        "seconds": time_fit.SECONDS, "record": None,
    }  # fmt: skip
    assert capsys.readouterr().out == f"a line\nwritten: {tmp_path / 'h100-pcie.json'}\n"
    mine, times = tmp_path / "mine.json", tmp_path / "all.json"
    options = ["--out", str(mine), "--record", str(times), "--limit-seconds", "30"]
    assert command.main(["tune", *options]) == tune_command.OK
    assert [on_hopper[name] for name in ("out", "record", "seconds")] == [mine, times, 30]


def test_what_failed_ends_the_command_with_a_failure(on_hopper, capsys):
    on_hopper["failed"] = {"row, forward": {"cute x": "ValueError: wrong"}}
    assert command.main(["tune"]) == tune_command.FAILED
    assert "row, forward, cute x: ValueError: wrong" in capsys.readouterr().err


def test_a_gpu_without_the_kernel_has_a_table(on_hopper, monkeypatch, capsys):
    monkeypatch.setattr(cute, "installed", lambda: False)
    monkeypatch.setattr(tune_gpu, "compile_ahead", lambda cases: pytest.fail("the table", pytrace=False))
    assert command.main(["tune", "--model"]) == tune_command.CANNOT
    assert "--model needs NVIDIA's CUTLASS packages" in capsys.readouterr().err
    with pytest.raises(pytest.fail.Exception, match="the table"):
        command.main(["tune"])
