"""What the constants of the time model are measured on, and the program that fits them."""

from __future__ import annotations

import json

import time_model as program
from course_kernels.bench import record, zoo
from course_kernels.packed.tuning import time_model


def test_rows_are_of_every_model_and_of_none():
    rows = program.rows()
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    found = program.sources(names)
    assert {model.name for model in zoo.MODELS} <= set(found.values())
    assert found["glm-4.5-air-64-zipf-up"] == "glm-4.5-air"
    assert any(name.startswith("deepseek-v3-of-8") for name in names)
    assert sum(found[name] == name for name in names) == sum(name.startswith("random-") for name in names) > 0


def test_the_program_writes_what_the_library_reads(tmp_path, monkeypatch, capsys):
    few = record.load("configurations_h100")
    kept = [name for name in few["rows"] if name.startswith(("random", "granite", "olmoe"))]
    few["rows"] = {name: few["rows"][name] for name in kept}
    monkeypatch.setattr(record, "load", lambda name: few)
    monkeypatch.setattr(program, "RECORDS", {"h100": "configurations_h100"})
    monkeypatch.setattr("sys.argv", ["time_model.py", "--out", str(tmp_path)])
    program.main()
    gpu, candidates = time_model.read(tmp_path / "h100.json")
    assert gpu.sms == 132
    assert all(candidates[kind] for kind in time_model.KINDS)
    content = json.loads((tmp_path / "h100.json").read_text())
    assert content["provenance"] == few["provenance"]
    assert {name.rsplit("-", 2)[0] for name in content["regret"]["left out"]} <= {"granite-3.0-3b-a800m", "olmoe-1b-7b"}
    assert "left out, k,n: " in capsys.readouterr().out


def test_the_constants_are_those_of_the_records():
    for gpu, name in program.RECORDS.items():
        content = json.loads((time_model.CONSTANTS / f"{gpu}.json").read_text())
        assert content["provenance"] == record.load(name)["provenance"], (
            f"run benchmarks/time_model.py: {name} is newer"
        )
