"""The facts that `machine` collects."""

from __future__ import annotations

import platform

import pytest
import torch

from course_kernels import runtime
from course_kernels.engine.hopper import compiled_cache as cute_cache
from course_kernels.testing import selftest
from gemm_course.cli import machine


@pytest.fixture(scope="module")
def facts():
    return machine.examine()


def test_facts_are_those_of_this_process(facts):
    assert ".".join(map(str, facts.python)) == platform.python_version()
    assert facts.packages["torch"] == torch.__version__
    assert facts.mode == runtime.mode()
    assert len(facts.gpus) == torch.cuda.device_count()
    assert facts.cores >= 1


def test_trials_run_and_compile_a_kernel(facts):
    assert facts.kernel.error is None, facts.kernel.error
    assert facts.compiler.error is None, facts.compiler.error
    assert facts.kernel.seconds > 0


def test_without_trials_nothing_is_tried():
    quick = machine.examine(trials=False)
    assert quick.kernel is None
    assert quick.compiler is None


def test_kept_kernels_are_found(monkeypatch, tmp_path):
    kernel = cute_cache.Kept("128x256x64", 2.5, 48_000, tmp_path / "kernel.o")
    monkeypatch.setattr(cute_cache, "kept", lambda: [kernel, kernel._replace(seconds=1.5)])
    assert machine.examine(trials=False).kept == (2.5, 1.5)


def test_a_wrong_result_is_a_finding(monkeypatch):
    right = selftest.group_gemm

    def off_by_one(*args, **kwargs):
        results = right(*args, **kwargs)
        results[2] += 1
        return results

    monkeypatch.setattr(selftest, "group_gemm", off_by_one)
    trial = machine.attempt(selftest.run_a_kernel)
    assert trial.error == "ArithmeticError: problem 2 of a grouped GEMM has a wrong result"


def test_an_error_becomes_one_line():
    def fail():
        raise RuntimeError("first line\nsecond line")

    assert machine.attempt(fail).error == "RuntimeError: first line"


@pytest.mark.parametrize(
    ("requires", "wanted"),
    [
        (["filelock", "triton==3.6.0; platform_system == 'Linux'"], "3.6.0"),
        (["filelock", "tritonclient==2.0"], None),
        (None, None),
    ],
)
def test_triton_that_torch_asks_for(monkeypatch, requires, wanted):
    monkeypatch.setattr(machine.importlib.metadata, "requires", lambda name: requires)
    assert machine._triton_wanted() == wanted


def test_driver_is_read_from_the_kernel_module_or_taken_from_its_tool(monkeypatch):
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version: 13"
    monkeypatch.setattr(machine.Path, "read_text", lambda self, **kwargs: text)
    assert machine._driver() == "580.95.05"

    def missing(self, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr(machine.Path, "read_text", missing)
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert machine._driver() == "present"
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine._driver() is None
