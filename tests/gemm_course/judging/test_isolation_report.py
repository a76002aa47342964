"""What the doctor says of the confinement of answers, here and on a GPU."""

from __future__ import annotations

import os

import pytest

from gemm_course.exercises import manifest
from gemm_course.isolation import landlock as sandbox
from gemm_course.isolation import seccomp
from gemm_course.judging import isolation_report as sandbox_report
from gemm_course.judging.judge import Judge
from gemm_course.judging.request import Outcome
from gemm_course.judging.untrusted import parse_reply


def test_the_doctor_says_what_confines_answers_here(monkeypatch):
    sentence = dict(sandbox_report.rows())["answers"]
    assert ("files are closed to them (Landlock" in sentence) == bool(sandbox.landlock_version())
    assert ("network closed (seccomp)" in sentence) == seccomp.supported()
    monkeypatch.setattr(sandbox, "landlock_version", lambda: 0)
    monkeypatch.setattr(seccomp, "supported", lambda: False)
    sentence = dict(sandbox_report.rows())["answers"]
    assert "files are open to them, as this kernel has no Landlock" in sentence
    assert "network open, as" in sentence


@pytest.mark.parametrize(
    ("version", "filters", "found", "works", "says"),
    [
        (7, True, "bwrap", True, "Landlock 7, seccomp and Bubblewrap"),
        (7, True, None, False, "Landlock 7 and seccomp; no Bubblewrap: not installed"),
        (0, True, "bwrap", False,
         "seccomp; no Landlock: this kernel has none; no Bubblewrap: this system lets it make no namespaces"),
        (1, False, "bwrap", True, "Landlock 1 and Bubblewrap; no seccomp: calls of this kernel cannot be filtered"),
        (0, False, None, False, "none; no Landlock: this kernel has none; no seccomp: calls of this kernel cannot be "
         "filtered; no Bubblewrap: not installed"),
    ],
)  # fmt: skip
def test_the_doctor_says_which_walls_stand(monkeypatch, version, filters, found, works, says):
    monkeypatch.setattr(sandbox, "landlock_version", lambda: version)
    monkeypatch.setattr(seccomp, "supported", lambda: filters)
    monkeypatch.setattr(sandbox_report.shutil, "which", lambda name: found)
    monkeypatch.setattr(sandbox_report.bubblewrap, "works", lambda: works)
    assert dict(sandbox_report.rows())["walls"] == f"answers run behind {says}"
    on_gpu = dict(sandbox_report.rows(gpu=True))["walls"]
    assert on_gpu.endswith("no Bubblewrap: not used with a GPU")
    assert on_gpu.count("Bubblewrap") == 1


@pytest.mark.parametrize(("problem", "says"), [("", "answers run, too"), ("error 304", "error 304; without Landlock")])
def test_the_doctor_says_whether_answers_run_on_a_gpu(monkeypatch, problem, says):
    monkeypatch.setattr(sandbox_report, "try_gpu", lambda ask: problem)
    monkeypatch.setattr(sandbox_report, "find_layer", lambda ask, problem: "without Landlock")
    assert [name for name, _ in sandbox_report.rows()] == ["answers", "walls"]
    row = dict(sandbox_report.rows(print))["on the GPU"]
    assert says in row
    assert ("the interpreter's word counts alone" in row) == bool(problem)


@pytest.mark.gpu
def test_a_kernel_runs_confined_on_a_gpu():
    """Where it does not, the message says which part of the confinement is in its way."""
    with Judge(manifest.examiner) as judge:
        row = dict(sandbox_report.rows(judge.ask))["on the GPU"]
    assert row.startswith("answers run, too"), row


def outcome(*messages, **parts):
    return Outcome([parse_reply(each) for each in messages], **parts)


ERROR = {"type": "OSError", "text": "no\n  device", "line": 0, "code": ""}
RESULT = outcome({"case": 0, "value": 1})


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (outcome({"case": 0, "error": {**ERROR, "kind": "exception"}}, status=1), "OSError: no device"),
        (outcome({"error": {**ERROR, "kind": "endless"}}), "it did not end"),
        (outcome(timed_out=True, printed="x"), "it did not end"),
        (outcome(setup_error="no Landlock", timed_out=True), "no Landlock"),
        (outcome(not_started="no room"), "no room"),
        (outcome(printed=" last\nwords \n", status=1), "last words"),
        (outcome(status=-9), "the process ended with status -9"),
        (outcome(printed="x" * 600 + "y" * 300), "y" * 300),
    ],
)
def test_why_there_is_no_result_takes_one_line(found, says):
    assert sandbox_report.one_line(found) == says


def test_a_gpu_is_tried_in_a_folder_that_is_gone_afterwards():
    asked = []

    def ask(mode, request, seconds):
        assert os.path.isdir(request["scratch"])
        asked.append((mode, request, seconds))
        return RESULT

    assert sandbox_report.try_gpu(ask, ["files"]) == ""
    ((mode, request, seconds),) = asked
    assert (mode, request["seconds"], request["without"]) == ("gpu", seconds, ["files"])
    assert not os.path.exists(os.path.dirname(request["path"]))
    assert sandbox_report.try_gpu(lambda *_: outcome(status=3)) == "the process ended with status 3"


@pytest.mark.parametrize(
    ("works_without", "says"),
    [
        ([{"files"}], "it runs without Landlock's rules about files"),
        (
            [{"files"}, {"calls"}],
            "it runs without Landlock's rules about files, and without the filter of system calls",
        ),
        (
            [{"files", "calls", "limits"}],
            "it runs without all of its confinement, not without one part of it alone",
        ),
        ([], "it does not run without its confinement either"),
    ],
)
def test_the_layer_in_the_way_is_named(works_without, says):
    def ask(mode, request, seconds):
        return RESULT if set(request["without"]) in works_without else outcome(status=3)

    assert sandbox_report.find_layer(ask, "the process ended with status 3") == says


def test_another_problem_without_the_layers_is_said_too():
    found = sandbox_report.find_layer(lambda *_: outcome(status=3), "error 304")
    assert found == "it does not run without its confinement either: the process ended with status 3"
