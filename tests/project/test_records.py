"""Every committed record says where it comes from; those older than the code that they measured are listed."""

from __future__ import annotations

import ast
import functools
import json
import re

import pytest

import run
from course_kernels import provenance
from course_kernels.bench import record

MACHINE = ("gpu", "capability", "sms", "l2_bytes", "torch", "triton", "cuda", "python")


@pytest.fixture(params=sorted(run.DEPENDS_ON))
def name(request):
    return request.param


def test_there_is_a_record_of_each_part_and_no_other():
    assert {path.stem for path in record.RESULTS.glob("*.json")} == set(run.DEPENDS_ON)


def test_a_record_has_machine_versions_date_and_commit(name):
    about = record.load(name)["provenance"]
    assert all(about[key] for key in MACHINE)
    assert re.match(r"20\d\d-\d\d-\d\dT", about["date"])
    assert re.match(r"[0-9a-f]{40}(\+changes)?$", about["commit"])


def test_a_record_is_not_older_than_its_code(name):
    """An older one is an expected failure, listed at the end of the run: whoever changes a kernel need not own the GPU
    that measures it again."""
    measured = record.load(name)
    if record.is_stale(measured):
        pytest.xfail(f"measure {name} again: {run.why_stale(name)}"[:300])
    assert measured["provenance"]["depends_on"] == list(run.DEPENDS_ON[name]), (
        f"measure {name} again: it depends on other files now"
    )


def test_a_record_that_depends_on_changed_code_is_stale(name):
    measured = json.loads(json.dumps(record.load(name)))
    measured["provenance"] |= {"depends_on": run.DEPENDS_ON[name]}
    measured["provenance"] |= {"depends_digest": provenance.digest(run.DEPENDS_ON[name])}
    assert not record.is_stale(measured)
    measured["provenance"]["depends_digest"] = "0" * 16
    assert record.is_stale(measured)
    del measured["provenance"]["depends_digest"]
    assert record.is_stale(measured)


@functools.cache
def imported(path):
    """Files of the library that a Python file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            paths = [provenance.ROOT / f"{name.replace('.', '/')}.py" for name in names]
            found.update(path for path in paths if path.is_file())
    return found


ROOMS = ("bench", "gmm", "jagged", "kernels", "lists", "masked", "packed", "layout", "testing")
BESIDE = {
    "kernels/language.py",  # chooses between the compiler and the interpreter
    "kernels/quantize.py",  # makes operands; what times it names it
    "kernels/record.py",  # a variant of the list API's kernels only
    "kernels/group_sums.py",  # the gradient of a bias, which no record measures
    "bench/tutorial_peer.py",  # a provider of some records
}
_OF_CUTE = {f"packed/backends/{name}.py" for name in ("cute", "cute_cache", "cute_counters")}
# Records that use a part of what their files import: a kernel called by itself, or one backend of two.
BY_ITSELF = {
    # Code that chooses, checks or names rows does not change the time of a configuration.
    "configurations": (
        chosen_by := {
            "bench/grouped.py",
            "bench/interface.py",
            "bench/rows.py",
            "bench/verification.py",
            "engine/product.py",
            "engine/scaling.py",
            "engine/tuning/defaults.py",
            "engine/tuning/time_model.py",
            "engine/whole_blocks.py",
        }
    ),
    "configurations_h100": chosen_by,
    "configurations_8bit": chosen_by,
    "configurations_8bit_h100": chosen_by,
    "hopper_steps": chosen_by,
    "fuzz": {*_OF_CUTE, "kernels/cute_sm90/config.py"},
    # What chooses is asked nothing but its rules.
    "sanitizers_triton": {*_OF_CUTE, "kernels/cute_sm90/config.py", "engine/tuning/time_model.py"},
    "sanitizers_cute": {"engine/tuning/time_model.py"},
}


def test_a_record_depends_on_what_its_files_import(name):
    """A name that is left out of the table would let a record look fresh."""
    package = provenance.ROOT / "course_kernels"
    files = set(provenance.files(run.DEPENDS_ON[name]))
    allowed = {package / path for path in BESIDE | BY_ITSELF.get(name, set())}
    for path in files:
        if path.relative_to(package).parts[0] in ROOMS:
            missing = {file for file in imported(path) if file.relative_to(package).parts[0] in ROOMS} - files - allowed
            assert not missing, f"{name} depends on {path.name}, which imports {sorted(map(str, missing))}"


def test_records_of_the_list_api_do_not_depend_on_the_packed_one_nor_the_other_way_round():
    def rooms(name):
        return {path.relative_to(provenance.ROOT).parts[1] for path in provenance.files(run.DEPENDS_ON[name])}

    for name in ("group_gemm", "dtypes", "when_to_group", "programs", "launches", "sm_timelines", "switch", "traffic"):
        assert "lists" in rooms(name)
        assert "packed" not in rooms(name)
    using_packed = "gmm grouped_mm jagged masked sustained scaled_grouped_mm fuzz fuzz_cute zoo"
    for name in using_packed.split():
        assert "packed" in rooms(name)
        assert "lists" not in rooms(name)


def test_stale_records_are_listed_with_commit_and_changed_files(monkeypatch, tmp_path, capsys):
    current = record.load("switch")
    current["provenance"] |= {"depends_on": run.DEPENDS_ON["switch"]}
    current["provenance"] |= {"depends_digest": provenance.digest(run.DEPENDS_ON["switch"])}
    old = json.loads(json.dumps(current))
    old["provenance"] |= {"depends_digest": "0" * 16, "commit": "1" * 40}
    for name, content in (("switch", current), ("traffic", old)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(record, "changed_files", lambda measured, patterns: ["course_kernels/kernels/tma.py"])
    monkeypatch.setattr("sys.argv", ["run.py", "--stale"])
    run.main()
    listed = "traffic: measured at 111111111111; changed since: course_kernels/kernels/tma.py\n"
    assert capsys.readouterr().out == listed
    monkeypatch.setattr(record, "changed_files", lambda measured, patterns: None)
    assert run.why_stale("traffic").endswith("changed since: files unknown: git does not have the commit")


@pytest.mark.parametrize(
    ("options", "message"),
    [(["nothing"], "no record nothing; there are: group_gemm"), (["--commit", "12ab"], "all 40 hexadecimal digits")],
)
def test_wrong_usage_is_refused_before_measuring(monkeypatch, capsys, options, message):
    monkeypatch.setattr("sys.argv", ["run.py", *options])
    with pytest.raises(SystemExit):
        run.main()
    assert message in capsys.readouterr().err


def test_parts_are_measured_and_written_with_what_they_depend_on(monkeypatch, tmp_path, capsys):
    part = run.Part(lambda: {"us": 7}, ("course_kernels/kernels/tma.py",))
    monkeypatch.setattr(run, "RECORDS", {"switch": part})
    monkeypatch.setitem(run.DEPENDS_ON, "switch", part.depends_on)
    monkeypatch.setattr(run.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run.torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(record, "provenance", lambda commit_id, depends_on: {"commit": commit_id, "on": depends_on})
    monkeypatch.setattr("sys.argv", ["run.py", "switch", "--out", str(tmp_path), "--commit", "a" * 40])
    run.main()
    written = record.read(tmp_path / "switch.json")
    assert written == {"provenance": {"commit": "a" * 40, "on": ["course_kernels/kernels/tma.py"]}, "us": 7}
    assert capsys.readouterr().out == "switch: 0 s\n"


def test_a_part_has_a_record_of_each_gpu_that_it_is_measured_on():
    assert run.file_name("configurations", "NVIDIA H200") == "configurations"
    assert run.file_name("configurations", "NVIDIA H100 80GB HBM3") == "configurations_h100"
    assert run.file_name("grouped_mm", "NVIDIA H100 80GB HBM3") == "grouped_mm", "one record, whatever measured it"
    assert run.DEPENDS_ON["configurations"] == run.DEPENDS_ON["configurations_h100"]
    with pytest.raises(ValueError, match="configurations has records of h200, h100, and this is NVIDIA B200"):
        run.file_name("configurations", "NVIDIA B200")


@pytest.mark.parametrize(("gpu", "file"), [("H200", "zoo"), ("H100 PCIe", "zoo_h100")])
def test_the_gpu_names_the_file_and_its_constants(monkeypatch, tmp_path, gpu, file):
    part = run.RECORDS["zoo"]._replace(measure=lambda: {"us": 7})
    monkeypatch.setattr(run, "RECORDS", {"zoo": part})
    monkeypatch.setattr(run.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run.torch.cuda, "get_device_name", lambda: gpu)
    monkeypatch.setattr(record, "provenance", lambda commit_id, depends_on: {"depends_on": depends_on})
    monkeypatch.setattr("sys.argv", ["run.py", "zoo", "--out", str(tmp_path)])
    run.main()
    assert [path.name for path in tmp_path.iterdir()] == [f"{file}.json"]
    found = record.read(tmp_path / f"{file}.json")["provenance"]["depends_on"]
    assert [path for path in found if "/constants/" in path] == [
        f"course_kernels/engine/tuning/constants/{gpu[:4].lower()}.json"
    ]


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
            for file in (name, *(f"{name}_{gpu}" for gpu in part.other_gpus)):
                assert run.file_name(name, record.load(file)["provenance"]["gpu"]) == file
