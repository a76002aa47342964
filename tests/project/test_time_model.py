"""What the constants of the time model are measured on, and the program that fits them."""

from __future__ import annotations

import json

import pytest

import time_model as program
from course_kernels.bench import record, zoo
from course_kernels.bench.tuning import config_times, fit, tune
from course_kernels.engine.tuning import Gpu, Kind, gpu_constants
from course_kernels.engine.tuning.configs_by_kind import by_name
from course_kernels.engine.tuning.kinds import KINDS, KINDS_8_BIT, KINDS_OF_LAYER


def test_rows_are_of_every_model_and_of_none():
    rows = program.rows()
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    found = tune.sources(names)
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
            for number, each in enumerate(by_name(config_times.KIND_OF_PASS[pass_name])):
                made["us"][each] = 5.0 + number + len(entry["sizes"]) * entry["N"] * entry["K"] / 4e6
        rows[name] = about | us
    return few | {"rows": rows, "provenance": few["provenance"] | {"date": "2026-12-24"}}


@pytest.mark.parametrize("eight_bits", [False, True], ids=["16 bits alone", "8 bits"])
def test_the_program_writes_what_the_library_reads(tmp_path, monkeypatch, capsys, eight_bits):
    few = record.load("configurations_h100")
    kept = [name for name in few["rows"] if name.startswith(("random", "granite", "olmoe"))]
    few["rows"] = {name: few["rows"][name] for name in kept}
    records = {"configurations_h100": few} | ({"configurations_8bit_h100": of_8_bits(few)} if eight_bits else {})

    def load(name):
        if name not in records:
            raise FileNotFoundError(name)
        return records[name]

    monkeypatch.setattr(record, "load", load)
    monkeypatch.setattr(program, "RECORDS", {"h100": "configurations_h100"})
    monkeypatch.setattr(fit, "STEPS", 2)  # how well a fit chooses: tests/course_kernels/bench/tuning
    monkeypatch.setattr("sys.argv", ["time_model.py", "--out", str(tmp_path)])
    program.main()
    name, _, gpu, found = gpu_constants.read(tmp_path / "h100.json")
    assert (name, gpu) == ("NVIDIA H100 80GB HBM3", Gpu("sm_90", 132, 3.352, 1.98, 232448))
    assert all(found[kind] for kind in KINDS)
    assert [kind for kind in KINDS_8_BIT if found.get(kind)] == list(KINDS_8_BIT) * eight_bits
    content = json.loads((tmp_path / "h100.json").read_text())
    assert content["provenance"] == few["provenance"]
    assert ("provenance of 8 bits" in content) == eight_bits
    judged = [name.rsplit(" ", 1)[0] for name in content["regret"]["left out"]]
    assert set(tune.sources(judged).values()) == {"granite-3.0-3b-a800m", "olmoe-1b-7b"}
    printed = capsys.readouterr().out
    assert "left out, k,n: " in printed
    assert ("left out, m,n fp8 blocks: " in printed) == eight_bits
    assert ("no record 8bit, so no constants of its products" in printed) != eight_bits
    assert "no record layer, so no constants of its products" in printed


def test_rows_of_8_bits_are_measured_within_their_time(monkeypatch):
    asked = []
    monkeypatch.setattr(config_times, "compile_ahead", lambda rows, passes: asked.append((rows, passes)))
    monkeypatch.setattr(config_times, "measure", lambda *given, seconds: asked.append((*given, seconds)) or {})
    monkeypatch.setattr(Gpu, "of", classmethod(lambda cls, device: cls("sm_90", 132, 4.8141)))
    assert program.measure_8_bit() == {"gpu": Gpu("sm_90", 132, 4.814)._asdict(), "rows": {}}
    (rows, passes), measured = asked
    assert measured == (rows, passes, program.SECONDS_8_BIT)
    assert passes == config_times.PASSES_8_BIT
    assert all(row.N % 16 == row.K % 16 == 0 for row in rows)
    assert 100 < len(rows) < 200
    assert any(row.name.startswith("random") for row in rows)


def test_a_layer_is_measured_within_its_time(monkeypatch):
    asked = []
    monkeypatch.setattr(program, "_measured", lambda *given: asked.append(given) or {})
    program.measure_layer()
    ((rows, passes, seconds),) = asked
    assert [config_times.KIND_OF_PASS[name] for name in passes] == list(KINDS_OF_LAYER)
    assert (len(rows) > 150, seconds) == (True, program.SECONDS_OF_LAYER)
    assert all(row.N % 16 == row.K % 16 == 0 for row in rows)


def test_a_wrong_configuration_ends_the_measurement(monkeypatch):
    wrong = {"row": {"forward fp8": {"us": {}, "failed": {"cute": "ValueError: 1 of 2 elements are wrong"}}}}
    monkeypatch.setattr(config_times, "compile_ahead", lambda rows, passes: None)
    monkeypatch.setattr(config_times, "measure", lambda rows, passes, seconds: wrong)
    with pytest.raises(AssertionError, match=r"row, forward fp8.*1 of 2 elements are wrong"):
        program.measure_8_bit()


def test_the_constants_are_those_of_the_records():
    for gpu, name in program.RECORDS.items():
        content = json.loads((gpu_constants.CONSTANTS / f"{gpu}.json").read_text())
        assert content["provenance"] == record.load(name)["provenance"], (
            f"run benchmarks/time_model.py: {name} is newer"
        )
        for part, provenance in program.PARTS.items():
            other = record.RESULTS / f"{name.replace('configurations', f'configurations_{part}')}.json"
            about = record.read(other)["provenance"] if other.exists() else None
            assert content.get(provenance) == about, f"run benchmarks/time_model.py: {other.stem} is newer"


def test_constants_are_compared_with_the_shipped_ones_on_measured_rows(tmp_path, monkeypatch, capsys):
    """The same constants choose the same; a configuration that seems too fast is chosen, and what it loses is told."""
    shipped, spoiled = gpu_constants.CONSTANTS / "h100.json", tmp_path / "spoiled.json"
    content = json.loads(shipped.read_text())
    for row in content["candidates"]["m,k"]:
        if row["backend"] == "triton" and row["config"].get("block_m") == 128:
            row["constants"] = [each / 100 for each in row["constants"][:2]] + row["constants"][2:]
    spoiled.write_text(json.dumps(content))
    told = {}
    for path in (shipped, spoiled):
        monkeypatch.setattr("sys.argv", ["time_model.py", "--compare", str(path)])
        program.main()
        told[path] = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert {Kind.parse(kind) for kind in told[shipped]} == {*KINDS, *KINDS_8_BIT}
    assert all(", mean 1.0000, worst 1.000, best 1.000" in line for line in told[shipped].values())
    assert float(told[spoiled]["m,k"].split()[3].strip(",")) > 1.002
    assert told[spoiled]["k,n"] == told[shipped]["k,n"]
