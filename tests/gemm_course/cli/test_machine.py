"""The facts that `machine` collects."""

from __future__ import annotations

import platform

import pytest
import torch

from course_kernels import runtime
from course_kernels.testing import selftest
from gemm_course.cli import machine


@pytest.fixture(scope="module")
def facts():
    return machine.examine()


def test_facts_are_those_of_this_process(facts):
    assert facts.packages["Python"] == platform.python_version()
    assert facts.packages["torch"] == torch.__version__
    assert facts.mode == runtime.mode()
    assert len(facts.gpus) == torch.cuda.device_count()
    assert facts.in_checkout


def test_trials_run_and_compile_a_kernel(facts):
    assert facts.kernel.error is None, facts.kernel.error
    assert facts.compiler.error is None, facts.compiler.error
    assert facts.kernel.seconds > 0


def test_without_trials_nothing_is_tried():
    quick = machine.examine(trials=False)
    assert quick.kernel is None
    assert quick.compiler is None


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
        ([], None),
        (None, None),  # torch was built from source
    ],
)
def test_triton_that_torch_asks_for(monkeypatch, requires, wanted):
    monkeypatch.setattr(machine, "_version", lambda name: None if requires is None else "2.13.0")
    monkeypatch.setattr(machine.importlib.metadata, "requires", lambda name: requires)
    assert machine._triton_wanted() == wanted


@pytest.mark.parametrize("tool", ["/usr/bin/nvidia-smi", None])
@pytest.mark.parametrize("module", [True, False])
def test_an_nvidia_driver_is_found_by_its_module_or_its_tool(monkeypatch, module, tool):
    monkeypatch.setattr(machine.Path, "exists", lambda self: module and str(self).startswith("/proc/driver/nvidia"))
    monkeypatch.setattr(machine.shutil, "which", lambda name: tool)
    assert machine.examine(trials=False).nvidia_driver == (module or tool is not None)
