"""Every committed record says where it comes from; those older than the code that they measured are listed."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys
import types

import pytest

import run
from course_kernels import provenance
from course_kernels.bench import record
from places import ROOT

MACHINE = ("gpu", "capability", "sms", "l2_bytes", "torch", "triton", "cuda", "python")


@pytest.fixture(params=sorted(run.FILES))
def name(request):
    return request.param


def test_there_is_a_record_of_each_part_and_no_other():
    assert {path.stem for path in record.RESULTS.glob("*.json")} == run.FILES


def test_a_record_has_machine_versions_date_and_commit(name):
    about = record.load(name)["provenance"]
    assert all(about[key] for key in MACHINE)
    assert re.match(r"20\d\d-\d\d-\d\dT", about["date"])
    assert re.match(r"[0-9a-f]{40}(\+changes)?$", about["commit"])


def test_a_record_is_not_older_than_its_code(name):
    """An older one is an expected failure, listed at the end of the run: whoever changes a kernel need not own the GPU
    that measures it again."""
    if why := record.why_stale(record.load(name)):
        pytest.xfail(f"measure {name} again: {why}"[:300])


def test_stale_records_are_listed_with_commit_and_reason(monkeypatch, tmp_path, capsys):
    on = ["course_kernels/kernels/tma.py"]
    current = {"provenance": {"depends_on": on, "depends_digest": provenance.digest(on), "commit": "1" * 40}}
    old = {"provenance": current["provenance"] | {"depends_digest": "0" * 16}}
    moved = {"provenance": current["provenance"] | {"depends_on": [*on, "course_kernels/no_more/*.py"]}}
    for name, content in (("switch", current), ("traffic", old), ("zoo", moved)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(record, "changed_files", lambda measured: ["src/course_kernels/kernels/tma.py"])
    monkeypatch.setattr("sys.argv", ["run.py", "--stale"])
    run.main()
    assert capsys.readouterr().out == (
        "traffic: measured at 111111111111; changed since: src/course_kernels/kernels/tma.py\n"
        "zoo: measured at 111111111111; gone since: course_kernels/no_more/*.py\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [(["nothing"], "no record nothing; there are: group_gemm"), (["--commit", "12ab"], "all 40 hexadecimal digits")],
)
def test_wrong_usage_is_refused_before_measuring(monkeypatch, capsys, options, message):
    monkeypatch.setattr("sys.argv", ["run.py", *options])
    with pytest.raises(SystemExit):
        run.main()
    assert message in capsys.readouterr().err


def test_every_part_is_a_function_of_a_program():
    for part in run.RECORDS.values():
        program, function = part.measure.split(".")
        functions = {node.name: node for node in ast.parse((ROOT / "benchmarks" / f"{program}.py").read_text()).body
                     if isinstance(node, ast.FunctionDef)}  # fmt: skip
        assert [argument.arg for argument in functions[function].args.args] == ["keep"] * part.tells_rows


@pytest.fixture
def on_a_gpu(monkeypatch):
    """The program as on a GPU of a name, with a part that a module of this name measures."""

    def prepare(gpu, **parts):
        monkeypatch.setattr(run.torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(run.torch.cuda, "get_device_name", lambda: gpu)
        monkeypatch.setattr(record, "provenance", lambda commit_id, depends_on: {"commit": commit_id, "on": depends_on})
        monkeypatch.setitem(sys.modules, "stand_in", types.SimpleNamespace(**parts))

    return prepare


def test_a_part_is_measured_and_written_with_what_it_depends_on(on_a_gpu, monkeypatch, tmp_path, capsys):
    def measure():
        next(provenance.ROOT.glob("course_kernels/engine/tuning/constants/h100.json")).read_text()
        return {"us": 7}

    on_a_gpu("NVIDIA H100 80GB HBM3", measure=measure)
    monkeypatch.setattr(run, "RECORDS", {"switch": run.Part("stand_in.measure")})
    monkeypatch.setattr("sys.argv", ["run.py", "switch", "--out", str(tmp_path), "--commit", "a" * 40])
    run.main()
    written = record.read(tmp_path / "switch.json")
    assert written["us"] == 7
    assert written["provenance"]["commit"] == "a" * 40
    assert "course_kernels/engine/tuning/constants/h100.json" in written["provenance"]["on"]
    assert re.fullmatch(r"switch: \d+ s\n", capsys.readouterr().out)
    monkeypatch.setattr(run, "RECORDS", {"switch": run.Part("stand_in.measure", depends_on=("course_kernels/*.py",))})
    run.main()
    assert record.read(tmp_path / "switch.json")["provenance"]["on"] == ["course_kernels/*.py"]


def test_rows_before_an_error_are_kept_beside_the_record(on_a_gpu, monkeypatch, tmp_path):
    def measure(keep):
        keep(types.SimpleNamespace(as_json=lambda: {"rows": 1}))
        if not ends:
            raise RuntimeError("lost device")
        return {"rows": 2}

    ends = []
    on_a_gpu("NVIDIA H200", measure=measure)
    monkeypatch.setattr(run, "RECORDS", {"zoo": run.Part("stand_in.measure", tells_rows=True)})
    monkeypatch.setattr("sys.argv", ["run.py", "zoo", "--out", str(tmp_path)])
    with pytest.raises(RuntimeError, match="lost device"):
        run.main()
    assert [path.name for path in tmp_path.iterdir()] == ["zoo.json.part"]
    assert record.read(tmp_path / "zoo.json.part")["rows"] == 1
    ends.append(True)
    run.main()
    assert [path.name for path in tmp_path.iterdir()] == ["zoo.json"]
    assert record.read(tmp_path / "zoo.json")["rows"] == 2


@dataclasses.dataclass
class Case:
    tokens: int


def test_a_record_that_was_cut_off_goes_on(on_a_gpu, monkeypatch, tmp_path):
    """Where code and machine are the same, the cases without a row are measured."""
    measured, about = [], dict.fromkeys((*MACHINE, "date"), "same") | {"depends_on": (), "commit": "a" * 40}

    def measure(keep):
        rows = []
        for case in sys.modules["stand_in"].cases():
            if case.tokens == stops:
                raise RuntimeError("lost device")
            measured.append(case.tokens)
            rows.append({"tokens": case.tokens, "us": len(measured)})
            keep(types.SimpleNamespace(as_json=lambda: {"rows": rows}))
        return {"rows": rows}

    def cases():
        return [Case(tokens) for tokens in (1, 2, 3)]

    on_a_gpu("NVIDIA H200", measure=measure, cases=cases)
    monkeypatch.setattr(record, "provenance", lambda *given: about | {"depends_digest": provenance.digest(())})
    monkeypatch.setattr(run, "RECORDS", {"zoo": run.Part("stand_in.measure", tells_rows=True, has_cases=True)})
    monkeypatch.setattr("sys.argv", ["run.py", "zoo", "--go-on", "--out", str(tmp_path)])
    stops = 3
    with pytest.raises(RuntimeError, match="lost device"):
        run.main()
    sys.modules["stand_in"].cases = cases
    about["torch"] = "another"
    with pytest.raises(ValueError, match="other torch"):
        run.main()
    about["torch"], stops = "same", None
    run.main()
    assert measured == [1, 2, 3]
    written = record.read(tmp_path / "zoo.json")
    assert written["rows"] == [{"tokens": n, "us": n} for n in measured]
    assert written["provenance"]["begun"] == "same"
    assert written["provenance"]["begun_at"] == "a" * 40
    sys.modules["stand_in"].cases = lambda: [Case(0), *cases()]
    about["commit"] = "b" * 40  # of the same code
    run.main()
    assert measured == [1, 2, 3, 0], "also where the record itself lacks a case"
    written = record.read(tmp_path / "zoo.json")
    assert [row["tokens"] for row in written["rows"]] == [0, 1, 2, 3], "in the order of the cases"
    assert written["provenance"]["begun_at"] == "a" * 40


def test_rows_of_other_code_are_not_kept(tmp_path):
    about = dict.fromkeys((*MACHINE, "date", "commit"), "same")
    stale = about | {"depends_on": ["course_kernels/config.py"], "depends_digest": "another"}
    record.write(tmp_path / "zoo.json.part", {"rows": []}, stale)
    with pytest.raises(ValueError, match="other code"):
        run.rows_of_same_code(tmp_path / "zoo.json.part", about)


def test_several_parts_are_measured_each_in_a_process_of_its_own(on_a_gpu, monkeypatch, tmp_path):
    ran = []
    on_a_gpu("NVIDIA H200")
    monkeypatch.setattr(run.subprocess, "run", lambda command, check: ran.append(command[2:]))
    monkeypatch.setattr("sys.argv", ["run.py", "switch", "zoo", "--out", str(tmp_path), "--commit", "a" * 40])
    run.main()
    options = [f"--out={tmp_path}", f"--commit={'a' * 40}"]
    assert ran == [["switch", *options], ["zoo", *options]]


def test_a_part_has_a_record_of_each_gpu_that_it_is_measured_on():
    assert run.file_name("configurations", "NVIDIA H200") == "configurations"
    assert run.file_name("configurations", "NVIDIA H100 80GB HBM3") == "configurations_h100"
    assert run.file_name("grouped_mm", "NVIDIA H100 80GB HBM3") == "grouped_mm", "one record, whatever measured it"
    with pytest.raises(ValueError, match="configurations has records of h200, h100, and this is NVIDIA B200"):
        run.file_name("configurations", "NVIDIA B200")


def test_a_part_for_several_gpus_has_a_record_of_each_number():
    assert run.file_name("expert_parallel", "NVIDIA H200", 2) == "expert_parallel"
    assert run.file_name("expert_parallel", "NVIDIA H200", 4) == "expert_parallel_x4"
    with pytest.raises(ValueError, match="expert_parallel has records of 2, 4 GPUs, and there are 8"):
        run.file_name("expert_parallel", "NVIDIA H200", 8)
    for name in ("expert_parallel", "expert_parallel_x4"):
        assert {f"expert_parallel{'_x4' * (row['ranks'] == 4)}" for row in record.load(name)["rows"]} == {name}


@pytest.mark.parametrize(("gpu", "file"), [("H200", "zoo"), ("H100 PCIe", "zoo_h100")])
def test_the_gpu_names_the_file(on_a_gpu, monkeypatch, tmp_path, gpu, file):
    on_a_gpu(gpu, measure=lambda: {"us": 7})
    monkeypatch.setattr(
        run, "RECORDS", {"zoo": run.RECORDS["zoo"]._replace(measure="stand_in.measure", tells_rows=False)}
    )
    monkeypatch.setattr("sys.argv", ["run.py", "zoo", "--out", str(tmp_path)])
    run.main()
    assert [path.name for path in tmp_path.iterdir()] == [f"{file}.json"]


def test_a_gpu_without_a_record_is_refused_before_measuring(monkeypatch, capsys):
    monkeypatch.setattr(run.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run.torch.cuda, "get_device_name", lambda: "NVIDIA B200")
    monkeypatch.setattr("sys.argv", ["run.py", "switch", "configurations"])
    with pytest.raises(SystemExit):
        run.main()
    assert "this is NVIDIA B200" in capsys.readouterr().err


def test_every_record_of_a_gpu_was_measured_there():
    for name, part in run.RECORDS.items():
        if part.other_gpus:
            for file in {name, *(f"{name}_{gpu}" for gpu in part.other_gpus)} & run.FILES:
                assert run.file_name(name, record.load(file)["provenance"]["gpu"]) == file
