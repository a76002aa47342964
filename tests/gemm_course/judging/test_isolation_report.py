"""The doctor's sentences about the isolation of answers, here and on a GPU."""

from __future__ import annotations

import os

import pytest

from gemm_course.exercises import manifest
from gemm_course.isolation import landlock, seccomp
from gemm_course.judging import isolation_report
from gemm_course.judging.judge import Judge
from gemm_course.judging.request import Outcome
from gemm_course.judging.untrusted import parse_reply


@pytest.mark.parametrize(
    ("version", "filters", "found", "works", "says"),
    [
        (7, True, "bwrap", True, "Landlock 7 (files), seccomp (processes, network), Bubblewrap"),
        (7, True, None, False, "Landlock 7 (files), seccomp (processes, network); no Bubblewrap: not installed"),
        (0, True, "bwrap", False,
         "seccomp (processes, network); no Landlock (files): this kernel has none; no Bubblewrap: this system allows "
         "no namespaces"),
        (1, False, "bwrap", True, "Landlock 1 (files), Bubblewrap; no seccomp (processes, network): this kernel cannot "
         "filter system calls"),
        (0, False, None, False, "none; no Landlock (files): this kernel has none; no seccomp (processes, network): "
         "this kernel cannot filter system calls; no Bubblewrap: not installed"),
    ],
)  # fmt: skip
def test_the_walls_that_hold_are_named_and_why_others_do_not(monkeypatch, version, filters, found, works, says):
    monkeypatch.setattr(landlock, "landlock_version", lambda: version)
    monkeypatch.setattr(seccomp, "supported", lambda: filters)
    monkeypatch.setattr(isolation_report.shutil, "which", lambda name: found)
    monkeypatch.setattr(isolation_report.bubblewrap, "works", lambda: works)
    assert isolation_report.walls(gpu=False) == f"answers run behind {says}"
    on_gpu = isolation_report.walls(gpu=True)
    assert on_gpu.endswith("no Bubblewrap: not used with a GPU")
    assert on_gpu.count("Bubblewrap") == 1


@pytest.mark.parametrize(("problem", "says"), [("", "on the GPU, too"), ("error 304", "error 304; without Landlock")])
def test_it_says_whether_answers_run_on_a_gpu(monkeypatch, problem, says):
    monkeypatch.setattr(isolation_report, "try_gpu", lambda ask: problem)
    monkeypatch.setattr(isolation_report, "find_layer", lambda ask, problem: "without Landlock")
    sentence = isolation_report.on_gpu(print)
    assert says in sentence
    assert ("the interpreter judges them alone" in sentence) == bool(problem)


@pytest.mark.gpu
def test_a_kernel_runs_confined_on_a_gpu():
    """If it does not, the message names the layer of isolation that blocks it."""
    with Judge(manifest.examiner) as judge:
        sentence = isolation_report.on_gpu(judge.ask)
    assert sentence.startswith("answers run on the GPU, too"), sentence


def outcome(*messages, **parts):
    return Outcome([parse_reply(each) for each in messages], **parts)


RESULT = outcome({"case": 0, "value": 1})


def test_a_gpu_is_tried_in_a_folder_that_is_gone_afterwards():
    asked = []

    def ask(mode, request, seconds):
        assert os.path.isdir(request["scratch"])
        asked.append((mode, request, seconds))
        return RESULT

    assert isolation_report.try_gpu(ask, ["files"]) == ""
    ((mode, request, seconds),) = asked
    assert (mode, request["seconds"], request["without"]) == ("gpu", seconds, ["files"])
    assert not os.path.exists(os.path.dirname(request["path"]))
    assert isolation_report.try_gpu(lambda *_: outcome(status=3)) == "the process ended with status 3"


@pytest.mark.parametrize(
    ("works_without", "says"),
    [
        ([{"files"}], "it runs without Landlock's rules about files"),
        (
            [{"files"}, {"calls"}],
            "it runs without Landlock's rules about files, and without the filter of system calls",
        ),
        ([{"files", "calls", "limits"}], "it runs without any isolation, but not without one layer alone"),
        ([], "it does not run without isolation either"),
    ],
)
def test_the_layer_in_the_way_is_named(works_without, says):
    def ask(mode, request, seconds):
        return RESULT if set(request["without"]) in works_without else outcome(status=3)

    assert isolation_report.find_layer(ask, "the process ended with status 3") == says


def test_another_problem_without_the_layers_is_said_too():
    found = isolation_report.find_layer(lambda *_: outcome(status=3), "error 304")
    assert found == "it does not run without isolation either: the process ended with status 3"
