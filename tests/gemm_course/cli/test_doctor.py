"""The facts that the doctor collects, its judgement of machines that this one is not, and its page."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
from types import SimpleNamespace

import pytest
import torch

import forked
from course_kernels import runtime
from course_kernels.testing import selftest
from gemm_course.cli import app as command
from gemm_course.cli import doctor, terminal
from gemm_course.cli.doctor import CUTLASS, Machine
from gemm_course.judging import isolation_report, judge

VERSIONS = dict(
    Python="3.11.2", torch="2.13.0+cpu", triton="3.7.1", jupyterlab="4.6.6", ipykernel="7.0", matplotlib="3.10",
    numpy="2.4.0", helion="1.5.0", **dict.fromkeys(CUTLASS, "0.3.0"),
)  # fmt: skip
LAPTOP = Machine(
    system=("Linux", "x86_64"), packages=VERSIONS, torch_built_for="CPU", triton_wanted=None, nvidia_driver=False,
    gpus=(), capability=None, mode="interpreter", cannot_launch="", in_checkout=True, kernel="", compiler="",
    isolation=("answers run behind Landlock 7 (files); no Bubblewrap: not installed",),
)  # fmt: skip
H200 = dataclasses.replace(
    LAPTOP, packages={**VERSIONS, "torch": "2.13.0+cu130"}, torch_built_for="CUDA 13.0", triton_wanted="3.7.1",
    nvidia_driver=True, gpus=("NVIDIA H200, 132 SMs, 140 GiB",), capability=(9, 0), mode="gpu",
)  # fmt: skip


def without(machine, *names):
    return dataclasses.replace(machine, packages={**machine.packages, **dict.fromkeys(names)})


@pytest.mark.parametrize("machine", [LAPTOP, H200], ids=["laptop", "H200"])
def test_a_good_machine_has_no_problem(machine):
    assert doctor.problems(machine) == []
    assert doctor.report(machine).splitlines()[-1].startswith("The course runs here")


CASES = {
    "no Triton": (without(LAPTOP, "triton"), True, "Triton is not installed", "make lab"),
    "macOS": (
        dataclasses.replace(without(LAPTOP, "triton"), system=("Darwin", "arm64")),
        True,
        "no build for Darwin",
        ".devcontainer/",
    ),
    "no Lab": (without(LAPTOP, "jupyterlab", "matplotlib"), True, "jupyterlab, matplotlib missing", "make lab"),
    "interpreter refuses": (
        dataclasses.replace(LAPTOP, cannot_launch="Triton 3.6.0 cannot loop: install 'numpy<2.4'"),
        True,
        "no kernel can run: Triton 3.6.0 cannot loop",
        "install 'numpy<2.4'",
    ),
    "compile-only": (
        dataclasses.replace(LAPTOP, cannot_launch="kernels cannot be run. Unset TRITON_INTERPRET"),
        True,
        "no kernel can run: kernels cannot be run",
        "Unset TRITON_INTERPRET",
    ),
    "kernel fails": (
        dataclasses.replace(LAPTOP, kernel="TypeError: odd"), True, "TypeError: odd", "reinstall",
    ),
    "kernel fails on the GPU": (
        dataclasses.replace(H200, kernel="RuntimeError: no image"), True, "no image", "TRITON_INTERPRET=1",
    ),
    "compiler fails": (
        dataclasses.replace(LAPTOP, compiler="CompileError: ptxas"), True, "ptxas", "reinstall",
    ),
    "CPU torch beside a driver": (
        dataclasses.replace(LAPTOP, nvidia_driver=True), False, "driver, but torch is a CPU build", "make lab",
    ),
    "driver too old": (
        dataclasses.replace(H200, gpus=(), mode="interpreter"), False, "CUDA 13.0 sees no GPU", "nvidia-smi",
    ),
    "GPU switched off": (dataclasses.replace(H200, mode="interpreter"), False, "keeps kernels off it", "unset"),
    "other Triton": (
        dataclasses.replace(H200, triton_wanted="3.6.0"), False, "belongs to Triton 3.6.0, but Triton 3.7.1", "3.6.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "stops", "what", "remedy"), CASES.values(), ids=CASES)
def test_each_problem_is_named_with_its_remedy(machine, stops, what, remedy):
    (problem,) = doctor.problems(machine)
    assert problem.stops is stops
    assert what in problem.what
    assert remedy in problem.remedy
    page = doctor.report(machine)
    assert ("does not run here yet" in page) is stops
    assert ("To repair" in page) is stops
    assert page.splitlines()[-2] == ""
    assert " ".join(f"{problem.what} → {problem.remedy}".split()) in " ".join(page.split())


def test_one_cause_is_one_problem():
    """Without NumPy, the interpreter neither runs nor compiles."""
    reason = "Triton's interpreter needs numpy, which is not installed: pip install numpy"
    broken = "ModuleNotFoundError: No module named 'numpy'"
    machine = dataclasses.replace(LAPTOP, cannot_launch=reason, kernel=None, compiler=broken)
    (problem,) = doctor.problems(machine)
    assert problem.remedy == "pip install numpy"
    rows = dict(doctor.works(machine))
    assert (rows["kernels"], rows["compiling"]) == ("do not run", "does not work")


def test_the_library_alone_does_without_numpy():
    """On a CPU it computes products in torch. The course runs kernels, too."""
    broken = "ModuleNotFoundError: No module named 'numpy'"
    course = dataclasses.replace(
        without(LAPTOP, "numpy"), cannot_launch=runtime.LACKS_NUMPY, kernel=None, compiler=broken
    )
    library = dataclasses.replace(course, in_checkout=False)
    assert [problem.stops for problem in doctor.problems(library)] == [False, False]
    assert doctor.report(library).splitlines()[-1].startswith("The library runs here")
    assert dict(doctor.works(library))["kernels"] == "do not run; torch computes products"
    assert doctor.problems(course)[0].stops


def test_the_page_names_what_works_and_how():
    laptop, h200 = dict(doctor.works(LAPTOP)), dict(doctor.works(H200))
    assert laptop["kernels"] == "run in Triton's interpreter, on the CPU: slow (tried: right)"
    assert h200["kernels"] == "run on the NVIDIA H200 (tried: right)"
    assert (laptop["timings"], h200["timings"][:11]) == ("the recorded ones are shown", "of this GPU")
    page = doctor.report(LAPTOP)
    for text in ("torch      2.13.0+cpu, built for CPU", "numpy 2.4.0", "GPU        none", "behind Landlock 7"):
        assert text in page
    pair = dataclasses.replace(H200, gpus=H200.gpus * 2)
    assert doctor.report(pair).count("GPU        NVIDIA H200, 132 SMs, 140 GiB\n") == 2


@pytest.mark.parametrize("machine", [LAPTOP, H200], ids=["laptop", "H200"])
def test_the_page_claims_nothing_that_a_trial_refuted(machine):
    failed = "OSError: odd"
    rows = dict(doctor.works(dataclasses.replace(machine, kernel=failed, compiler=failed)))
    assert (rows["kernels"], rows["compiling"]) == ("do not run", "does not work")
    assert rows["timings"] == "the recorded ones are shown"


def test_lessons_that_lack_a_package_or_hardware_are_named():
    rows = dict(doctor.works(without(LAPTOP, "helion", *CUTLASS)))
    assert rows["lesson 09"] == 'needs a package: pip install ".[cutlass]"'
    assert rows["lesson 13"] == 'needs a package: pip install ".[helion]"'
    ampere = dict(doctor.works(dataclasses.replace(H200, capability=(8, 0))))
    assert ampere["lesson 06"] == "TMA needs capability 9.0: the pointer kernel takes over"
    assert ampere["lesson 12"] == "fp8 needs capability 8.9: TRITON_INTERPRET=1 computes it"
    assert not [name for name, _ in doctor.works(H200) if name.startswith("lesson")]
    for name in CUTLASS:
        assert "lesson 09" in dict(doctor.works(without(LAPTOP, name)))


def test_library_installed_alone_has_its_own_verdict():
    library = dataclasses.replace(without(LAPTOP, "jupyterlab", "matplotlib", "helion"), in_checkout=False)
    (problem,) = doctor.problems(library)
    assert not problem.stops
    assert "needed by the course's notebooks" in problem.what
    assert problem.remedy == "for them, clone the course's repository"
    assert "The library runs here" in doctor.report(library)
    assert "lesson" not in doctor.report(library)


@pytest.mark.parametrize("case", CASES)
def test_outside_a_checkout_no_remedy_needs_one(case):
    machine = dataclasses.replace(CASES[case][0], in_checkout=False)
    page = doctor.report(machine)
    for needs_checkout in ("make lab", ".devcontainer", "pyproject.toml", ".venv", "notebooks/"):
        assert needs_checkout not in page
    assert ("The library does not run here yet" in page) is (CASES[case][1] and case != "no Lab")


def test_problems_that_stop_come_first():
    machine = dataclasses.replace(without(LAPTOP, "jupyterlab"), nvidia_driver=True)
    assert [problem.stops for problem in doctor.problems(machine)] == [True, False]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_page_fits_the_terminal_and_colour_adds_marks_only(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    machine = dataclasses.replace(without(LAPTOP, "triton"), nvidia_driver=True)
    plain = doctor.report(machine)
    monkeypatch.setattr(terminal, "has_styles", lambda stream: True)
    painted = doctor.report(machine)
    assert max(map(len, plain.splitlines())) <= min(columns, 100)
    assert "\033" not in plain
    for code in ("1", "31", "33", "0", "1;31"):
        painted = painted.replace(f"\033[{code}m", "")
    assert painted == plain


def ask(*arguments, **options):
    return forked.run_module("gemm_course.cli.app", "doctor", "--quick", *arguments, **options)


def test_command_in_a_pipe_is_plain_and_succeeds():
    done = ask()
    assert (done.returncode, done.stderr) == (0, "")
    assert "\033" not in done.stdout
    assert "What works" in done.stdout
    assert "\n  isolation  answers run behind " in done.stdout


def test_command_fails_with_a_remedy_where_no_kernel_can_run():
    done = ask("--json", TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["ok"] is False
    assert result["machine"]["mode"] == "compile-only"
    assert "Unset TRITON_INTERPRET" in result["problems"][0]["remedy"]


@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["page", "json"])
def test_a_reader_that_leaves_early_sees_no_traceback(arguments):
    done = ask(*arguments, before=forked.NO_READER)
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_is_the_doctor(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda trials: LAPTOP)
    assert command.main(["doctor", "--quick"]) == 0
    assert capsys.readouterr().out.rstrip() == doctor.report(LAPTOP)


WALLS, TRIED = "answers run behind seccomp", "answers run on the GPU, too"


@pytest.mark.parametrize(
    ("facts", "sentences"),
    [
        (LAPTOP, [WALLS]),
        (H200, [f"{WALLS}, no Bubblewrap", TRIED]),
        (dataclasses.replace(H200, kernel=None), [f"{WALLS}, no Bubblewrap"]),
        (dataclasses.replace(H200, kernel="OSError: odd"), [f"{WALLS}, no Bubblewrap"]),
        (dataclasses.replace(LAPTOP, system=("Darwin", "arm64")), []),
        (without(LAPTOP, "triton"), []),
    ],
)
def test_isolation_is_examined_and_tried_where_kernels_run_on_a_gpu(monkeypatch, facts, sentences):
    opened = SimpleNamespace(ask="ask of a judge")
    monkeypatch.setattr(judge, "Judge", lambda examiner: contextlib.nullcontext(opened))
    monkeypatch.setattr(isolation_report, "walls", lambda gpu: WALLS + (", no Bubblewrap" if gpu else ""))
    monkeypatch.setattr(isolation_report, "on_gpu", lambda ask: TRIED if ask == "ask of a judge" else None)
    assert list(doctor.isolation(facts)) == sentences


def test_facts_are_those_of_this_process_and_both_trials_succeed():
    facts = doctor.examine()
    assert facts.packages["Python"] == platform.python_version()
    assert facts.packages["torch"] == torch.__version__
    assert (facts.mode, facts.capability) == (runtime.mode(), runtime.capability())
    assert len(facts.gpus) == torch.cuda.device_count()
    assert facts.in_checkout
    assert (facts.kernel, facts.compiler) == ("", "")


def test_a_triton_that_breaks_is_a_problem_and_no_traceback(monkeypatch):
    def broken(device):
        raise AttributeError("no attribute 'interpret'")

    monkeypatch.setattr(runtime, "check_can_launch", broken)
    facts = doctor.examine()
    assert facts.kernel is None
    (problem,) = doctor.problems(facts)
    assert problem == (
        True,
        "no kernel can run: no attribute 'interpret'",
        "reinstall the torch and Triton that pyproject.toml pins",
    )


def test_a_wrong_result_is_a_finding(monkeypatch):
    right = selftest.group_gemm

    def off_by_one(*args, **kwargs):
        results = right(*args, **kwargs)
        results[2] += 1
        return results

    monkeypatch.setattr(selftest, "group_gemm", off_by_one)
    error = doctor.attempt(selftest.run_a_kernel)
    assert error == "ArithmeticError: problem 2 of a grouped GEMM has a wrong result"


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([["filelock", "triton==3.6.0; platform_system == 'Linux'"]], "3.6.0"),
        ([["filelock", "tritonclient==2.0"]], None),
        ([["filelock", "triton-rocm==3.7.1; platform_system == 'Linux'"]], "3.7.1"),
        ([None], None),  # it requires nothing
        ([], None),  # torch was built from source
    ],
)
def test_triton_that_torch_asks_for(monkeypatch, found, wanted):
    torchs = [SimpleNamespace(requires=each, version="2.13.0") for each in found]
    monkeypatch.setattr(doctor, "distributions", lambda name: torchs if name == "torch" else [])
    assert doctor.examine(trials=False).triton_wanted == wanted


@pytest.mark.parametrize("name", doctor.TRITON)
def test_triton_is_found_by_any_of_its_names(monkeypatch, name):
    """On PyTorch's index, builds for ROCm and of nights are named otherwise."""
    monkeypatch.setattr(
        doctor, "distributions", lambda name, of=name: [SimpleNamespace(version="3.8.0", requires=[])] * (name == of)
    )
    monkeypatch.setattr(doctor, "isolation", lambda facts: [])
    assert doctor.examine(trials=False).packages["triton"] == "3.8.0"


@pytest.mark.parametrize(
    ("module", "tool"), [(True, None), (False, "/usr/bin/nvidia-smi"), (False, None)], ids=["module", "tool", "neither"]
)
def test_an_nvidia_driver_is_found_by_its_module_or_its_tool(monkeypatch, module, tool):
    monkeypatch.setattr(doctor.Path, "exists", lambda self: module and str(self).startswith("/proc/driver/nvidia"))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: tool)
    monkeypatch.setattr(doctor, "isolation", lambda facts: [])
    facts = doctor.examine(trials=False)
    assert facts.nvidia_driver == (module or tool is not None)
    assert (facts.kernel, facts.compiler) == (None, None)
