"""`course tune`: lists, refuses wrong usage, measures, writes and reports."""

from __future__ import annotations

import json

import torch

from course_kernels.bench import record, tune_gpu
from course_kernels.packed.tuning import lookup as tuned
from course_kernels.runtime import Device
from gemm_course.cli import app as command
from gemm_course.cli import tune as tune_command
from tuner_stand_in import PROVENANCE, Fake


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
