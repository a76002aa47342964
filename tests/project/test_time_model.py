"""What the constants of the time model are measured on, and the program that fits them."""

from __future__ import annotations

import json

import pytest

import time_model as program
from course_kernels.bench import candidates, record, time_fit, zoo
from course_kernels.engine.tuning import time_model


def test_rows_are_of_every_model_and_of_none():
    rows = program.rows()
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    found = time_fit.sources(names)
    assert {model.name for model in zoo.MODELS} <= set(found.values())
    assert found["glm-4.5-air-64-zipf-up"] == "glm-4.5-air"
    assert any(name.startswith("deepseek-v3-of-8") for name in names)
    assert sum(found[name] == name for name in names) == sum(name.startswith("random-") for name in names) > 0


def of_8_bits(few):
    """A record of the same rows with 8-bit passes, as if each configuration took as long as it reads bytes."""
    rows = {}
    for name, entry in few["rows"].items():
        about = {key: entry[key] for key in ("title", "sizes", "N", "K")}
        us = {
            f"{pass_name} fp8{blocks}": {"us": {}, "failed": {}}
            for pass_name in ("forward", "dA")
            for blocks in ("", " blocks")
        }
        for pass_name, made in us.items():
            for number, each in enumerate(candidates.by_name(candidates.KIND_OF_PASS[pass_name])):
                made["us"][each] = 5.0 + number + len(entry["sizes"]) * entry["N"] * entry["K"] / 4e6
        rows[name] = about | us
    return few | {"rows": rows, "provenance": few["provenance"] | {"date": "2026-12-24"}}


@pytest.mark.parametrize("measured", [False, True], ids=["16 bits alone", "8 bits"])
def test_the_program_writes_what_the_library_reads(tmp_path, monkeypatch, capsys, measured):
    few = record.load("configurations_h100")
    kept = [name for name in few["rows"] if name.startswith(("random", "granite", "olmoe"))]
    few["rows"] = {name: few["rows"][name] for name in kept}
    records = {"configurations_h100": few} | ({"configurations_8bit_h100": of_8_bits(few)} if measured else {})

    def load(name):
        if name not in records:
            raise FileNotFoundError(name)
        return records[name]

    monkeypatch.setattr(record, "load", load)
    monkeypatch.setattr(program, "RECORDS", {"h100": "configurations_h100"})
    monkeypatch.setattr("sys.argv", ["time_model.py", "--out", str(tmp_path)])
    program.main()
    gpu, found = time_model.read(tmp_path / "h100.json")
    assert gpu.sms == 132
    assert all(found[kind] for kind in time_model.KINDS)
    assert [kind for kind in time_model.KINDS_8_BIT if found.get(kind)] == list(time_model.KINDS_8_BIT) * measured
    content = json.loads((tmp_path / "h100.json").read_text())
    assert content["provenance"] == few["provenance"]
    assert ("provenance of 8 bits" in content) == measured
    judged = [name.rsplit(" ", 1)[0] for name in content["regret"]["left out"]]
    assert set(time_fit.sources(judged).values()) == {"granite-3.0-3b-a800m", "olmoe-1b-7b"}
    printed = capsys.readouterr().out
    assert "left out, k,n: " in printed
    assert ("left out, m,n fp8 blocks: " in printed) == measured
    assert ("no record of 8-bit products" in printed) != measured


def test_rows_of_8_bits_are_measured_within_their_time(monkeypatch):
    asked = []
    monkeypatch.setattr(candidates, "compile_ahead", lambda rows, passes: asked.append((rows, passes)))
    monkeypatch.setattr(
        candidates, "measure", lambda rows, passes, seconds: asked.append((rows, passes, seconds)) or {}
    )
    monkeypatch.setattr(time_model.Gpu, "of", classmethod(lambda cls, device: cls("sm_90", 132, 4.8141)))
    assert program.measure_8_bit() == {"arch": "sm_90", "bandwidth": 4.814, "rows": {}}
    (rows, passes), measured = asked
    assert measured == (rows, passes, program.SECONDS_8_BIT)
    assert passes == candidates.PASSES_8_BIT
    assert all(row.N % 16 == row.K % 16 == 0 for row in rows)
    assert 100 < len(rows) < 200
    assert any(row.name.startswith("random") for row in rows)


def test_a_wrong_configuration_ends_the_measurement(monkeypatch):
    wrong = {"row": {"forward fp8": {"us": {}, "failed": {"cute": "ValueError: 1 of 2 elements are wrong"}}}}
    monkeypatch.setattr(candidates, "compile_ahead", lambda rows, passes: None)
    monkeypatch.setattr(candidates, "measure", lambda rows, passes, seconds: wrong)
    with pytest.raises(AssertionError, match=r"row, forward fp8.*1 of 2 elements are wrong"):
        program.measure_8_bit()


def test_the_constants_are_those_of_the_records():
    for gpu, name in program.RECORDS.items():
        content = json.loads((time_model.CONSTANTS / f"{gpu}.json").read_text())
        assert content["provenance"] == record.load(name)["provenance"], (
            f"run benchmarks/time_model.py: {name} is newer"
        )
        of_8_bits = record.RESULTS / f"{name.replace('configurations', 'configurations_8bit')}.json"
        measured = record.read(of_8_bits)["provenance"] if of_8_bits.exists() else None
        assert content.get("provenance of 8 bits") == measured, (
            f"run benchmarks/time_model.py: {of_8_bits.stem} is newer"
        )
