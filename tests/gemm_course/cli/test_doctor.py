"""The doctor's judgement of machines that this one is not, and its page."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys

import pytest

import forked
from gemm_course.cli import app as command
from gemm_course.cli import doctor
from gemm_course.cli.machine import CUTLASS, Gpu, Machine, Trial
from gemm_course.judging import judge

VERSIONS = dict(
    torch="2.13.0+cpu", triton="3.7.1", jupyterlab="4.6.6", ipykernel="7.0", matplotlib="3.10", numpy="2.4.0",
    nbval="0.11.0", pytest="9.0", helion="1.5.0", **dict.fromkeys(CUTLASS.values(), "0.3.0"),
)  # fmt: skip
LAPTOP = Machine(
    python=(3, 11, 2), system=("Linux", "x86_64"), cores=2, memory_gib=7.6, packages=VERSIONS, torch_built_for="CPU",
    triton_wanted=None, driver=None, gpus=(), mode="interpreter", cannot_launch=None, records=("group_gemm",),
    kernel=Trial(None, 0.2), compiler=Trial(None, 2.5),
)  # fmt: skip
H200 = dataclasses.replace(
    LAPTOP, packages={**VERSIONS, "torch": "2.13.0+cu130"}, torch_built_for="CUDA 13.0", triton_wanted="3.7.1",
    driver="580.95.05", gpus=(Gpu("NVIDIA H200", (9, 0), 132, 139.8),), mode="gpu",
)  # fmt: skip


def without(machine, *names):
    return dataclasses.replace(machine, packages={**machine.packages, **dict.fromkeys(names)})


@pytest.mark.parametrize("machine", [LAPTOP, H200], ids=["laptop", "H200"])
def test_a_good_machine_has_no_problem(machine):
    assert doctor.problems(machine) == []
    assert doctor.report(machine).splitlines()[-1].startswith("The course runs here")


CASES = {
    "old Python": (dataclasses.replace(LAPTOP, python=(3, 9, 18)), True, "3.9.18 is older", "PYTHON=python3.12"),
    "no Triton": (without(LAPTOP, "triton"), True, "Triton is not installed", "make lab"),
    "macOS": (
        dataclasses.replace(without(LAPTOP, "triton"), system=("Darwin", "arm64")),
        True,
        "no build for Darwin",
        ".devcontainer/",
    ),
    "no Lab": (without(LAPTOP, "jupyterlab", "matplotlib"), True, "jupyterlab, matplotlib missing", "make lab"),
    "no test tools": (without(LAPTOP, "nbval"), False, "nbval missing", "make test"),
    "interpreter refuses": (
        dataclasses.replace(LAPTOP, cannot_launch="Triton 3.6.0 cannot loop: install 'numpy<2.4'"),
        True,
        "no kernel can run: Triton 3.6.0 cannot loop",
        "numpy<2.4",
    ),
    "kernel fails": (
        dataclasses.replace(LAPTOP, kernel=Trial("TypeError: odd", 0.1)), True, "TypeError: odd", "reinstall",
    ),
    "kernel fails on the GPU": (
        dataclasses.replace(H200, kernel=Trial("RuntimeError: no image", 0.1)), True, "no image", "TRITON_INTERPRET=1",
    ),
    "compiler fails": (
        dataclasses.replace(LAPTOP, compiler=Trial("CompileError: ptxas", 0.1)), True, "ptxas", "reinstall",
    ),
    "CPU torch beside a driver": (
        dataclasses.replace(LAPTOP, driver="580.95.05"), False, "(580.95.05), and torch is a CPU build", "make lab",
    ),
    "driver too old": (
        dataclasses.replace(H200, gpus=(), mode="interpreter"), False, "CUDA 13.0 sees no GPU", "nvidia-smi",
    ),
    "GPU switched off": (dataclasses.replace(H200, mode="interpreter"), False, "keeps kernels off it", "unset"),
    "other Triton": (
        dataclasses.replace(H200, triton_wanted="3.6.0"), False, "belongs to Triton 3.6.0, and Triton 3.7.1", "3.6.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "stops", "what", "remedy"), CASES.values(), ids=CASES)
def test_each_problem_is_named_with_its_remedy(machine, stops, what, remedy):
    (problem,) = doctor.problems(machine)
    assert problem.stops is stops
    assert what in problem.what
    assert remedy in problem.remedy
    for page in (doctor.report(machine), doctor.full_report(machine)):
        assert ("does not run here yet" in page) is stops
        assert ("To repair" in page) is stops
    assert problem.what.split()[0] in page


def test_a_learners_page_leaves_out_details():
    facts = dataclasses.replace(
        without(LAPTOP, "nbval", "pytest"),
        answers=(("answers", "to exercises run apart, with limits"), ("walls", "answers run behind Landlock 7")),
    )
    page, everything = doctor.report(facts), doctor.full_report(facts)
    for word in ("Python", "torch", "Triton", "GPU", "interpreter", "recorded", "The course runs here"):
        assert word in page
    assert "  walls         answers run behind Landlock 7\n" in page
    for word in ("!", "nbval", "with limits", "make test", "lesson 09"):
        assert word not in page
    for word in ("! nbval, pytest missing", "with limits", "Landlock 7", "make test installs"):
        assert word in everything
    assert len(page.splitlines()) < 14


def test_a_learners_page_names_packages_that_lessons_lack():
    lacking = doctor.report(without(LAPTOP, "helion", *CUTLASS.values()))
    assert 'lesson 09     needs CUTLASS: pip install ".[cutlass]"' in lacking
    assert 'lesson 13     needs Helion: pip install ".[helion]"' in lacking
    ampere = dataclasses.replace(H200, gpus=(Gpu("NVIDIA A100", (8, 0), 108, 80.0),))
    assert "needs capability 9.0" in doctor.report(ampere)
    assert "TMA" not in doctor.report(H200)
    assert "lesson" not in doctor.report(dataclasses.replace(without(LAPTOP, "helion"), records=None))


LIBRARY = dataclasses.replace(without(LAPTOP, "jupyterlab", "ipykernel", "matplotlib", "nbval", "pytest"), records=None)
NO_NUMPY = dataclasses.replace(
    without(LAPTOP, "numpy"),
    cannot_launch="Triton's interpreter needs numpy, which is not installed: pip install 'numpy'",
    kernel=None, compiler=Trial("ModuleNotFoundError: No module named 'numpy'", 0.3),
)  # fmt: skip


def test_library_installed_alone_has_its_own_verdict():
    (problem,) = doctor.problems(LIBRARY)
    assert not problem.stops
    assert "clone the course's repository" in problem.remedy
    page = doctor.report(LIBRARY)
    assert "The library runs here" in page
    assert "The course's notebooks need JupyterLab and a clone" in page
    assert "To repair" not in page


def test_checkout_with_the_library_alone_lacks_the_course():
    checkout = dataclasses.replace(LIBRARY, records=())
    assert [problem.stops for problem in doctor.problems(checkout)] == [True, False]
    assert "make lab" in doctor.problems(checkout)[0].remedy
    page = doctor.report(checkout)
    assert "The course does not run here yet" in page
    assert "The library runs here" in page


@pytest.mark.parametrize("case", CASES)
def test_outside_a_checkout_no_remedy_needs_one(case):
    machine = dataclasses.replace(CASES[case][0], records=None)
    page = doctor.report(machine) + doctor.full_report(machine)
    for needs_checkout in ("make lab", "make test", ".devcontainer", "pyproject.toml", ".venv", "notebooks/"):
        assert needs_checkout not in page
    library_stops = any(problem.stops for problem in doctor.problems(machine))
    assert library_stops is (CASES[case][1] and case != "no Lab")
    assert ("The library does not run here yet" in page) is library_stops


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("records", [None, ("group_gemm",)])
def test_without_numpy_the_interpreter_neither_runs_nor_compiles(records, quick):
    machine = dataclasses.replace(NO_NUMPY, records=records)
    if quick:
        machine = dataclasses.replace(machine, compiler=None)
    (problem,) = doctor.problems(machine)
    assert problem.stops is (records is not None)
    assert problem.remedy == "pip install numpy"
    plan = dict(doctor.plan(machine))
    assert plan["kernels"] == "do not run: Triton's interpreter needs numpy"
    assert plan["library"].startswith("all products and gradients run on CPU tensors, by torch")
    assert plan["compiling"] == "does not run: Triton's interpreter needs numpy"
    assert plan["TMA and fp8"] == "do not run, as no kernel does"
    page = doctor.report(machine)
    assert "The library runs here, by torch alone" in page
    assert ("The course does not run here yet" in page) is (records is not None)


def test_what_runs_without_numpy_runs():
    """As the page says."""
    code = """
import sys
sys.modules["numpy"] = None
import torch
from torch.nn.functional import ScalingType
from course_kernels import deepgemm, gmm, group_gemm, grouped_gemm_jagged, grouped_mm, quantize_1x128, scaled_grouped_mm
a, b = torch.ones(4, 16, requires_grad=True), torch.ones(1, 16, 16, requires_grad=True)
ends, row = torch.tensor([4]), ScalingType.RowWise
(grouped_mm(a, b, offs=ends).sum() + group_gemm([a], [b[0]])[0].sum()).backward()
grouped_gemm_jagged(a, b[0], torch.tensor([0, 4]))
gmm(a.detach().bfloat16(), b.detach().bfloat16(), ends)
deepgemm(a.detach().half()[None], b.detach().half(), torch.empty(1, 4, 16), torch.tensor([4]))
q, w = (quantize_1x128(each.detach())[0] for each in (a, b))
scaled_grouped_mm(q, w, torch.ones(4), row, torch.ones(1, 16), row, offs=ends)
print(a.grad[0, 0].item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "32.0", done.stderr


def test_a_gpu_runs_the_library_without_numpy():
    machine = dataclasses.replace(without(H200, "numpy"), records=None)
    assert not any(problem.stops for problem in doctor.problems(machine))
    assert dict(doctor.plan(machine))["kernels"].startswith("compiled, on the NVIDIA H200")


@pytest.mark.parametrize("machine", [LAPTOP, H200], ids=["laptop", "H200"])
def test_the_plan_claims_nothing_that_a_trial_refuted(machine):
    failed = Trial("OSError: odd", 0.1)
    plan = dict(doctor.plan(dataclasses.replace(machine, kernel=failed, compiler=failed)))
    assert plan["kernels"] == "do not run: OSError: odd"
    assert plan["compiling"] == "does not run: OSError: odd"
    assert plan["TMA and fp8"] == "do not run, as no kernel does"
    assert plan["live timings"].startswith("none")


def test_what_stops_comes_first():
    machine = dataclasses.replace(without(LAPTOP, "nbval", "jupyterlab"), driver="present")
    assert [problem.stops for problem in doctor.problems(machine)] == [True, False, False]


def test_the_plan_says_how_each_part_runs():
    laptop, h200 = dict(doctor.plan(LAPTOP)), dict(doctor.plan(H200))
    assert "interpreter, on the CPU" in laptop["kernels"]
    assert "(tried: right, 0.2 s)" in laptop["kernels"]
    assert "compiled, on the NVIDIA H200" in h200["kernels"]
    assert h200["TMA"] == h200["fp8"] == "in hardware"
    assert "skip" in laptop["GPU tests"]
    assert "pytest -m gpu" in h200["GPU tests"]
    assert laptop["records"].startswith("1 record of Hopper GPUs")


def test_cutlass_is_told_with_what_it_gives_or_how_to_get_it():
    assert "CUTLASS       operators 0.3.0, DSL 0.3.0, TVM FFI 0.3.0" in doctor.full_report(LAPTOP)
    assert "lesson 09 and course_kernels.cutlass_ops find" in dict(doctor.plan(LAPTOP))["CUTLASS"]
    assert "want Hopper or Blackwell" in dict(doctor.plan(LAPTOP))["CUTLASS"]
    assert dict(doctor.plan(H200))["CUTLASS"].endswith("as grouped_mm's kernel for Hopper does")
    result = dict(doctor.plan(dataclasses.replace(H200, kept=(1.4, 2.8))))["CUTLASS"]
    assert result.endswith("for Hopper does (2 compiled so far, in 4 s together, and kept)")
    blackwell = dataclasses.replace(H200, gpus=(Gpu("NVIDIA B200", (10, 0), 148, 180.0),))
    assert "NVIDIA's run here" in dict(doctor.plan(blackwell))["CUTLASS"]
    assert dict(doctor.fact_rows(without(LAPTOP, *CUTLASS.values())))["CUTLASS"] == "not installed"
    for name in CUTLASS.values():
        lacking = without(LAPTOP, name)
        assert "missing" in dict(doctor.fact_rows(lacking))["CUTLASS"]
        assert "pip install '.[cutlass]' in a checkout" in dict(doctor.plan(lacking))["CUTLASS"]
        installed = dataclasses.replace(lacking, records=None)
        assert "pip install '.[cutlass]' in a checkout" in dict(doctor.plan(installed))["CUTLASS"]
        assert "lesson" not in dict(doctor.plan(installed))["CUTLASS"]
        assert doctor.problems(lacking) == []


def test_hardware_that_a_lesson_wants_and_an_older_gpu_lacks():
    ampere = dataclasses.replace(H200, gpus=(Gpu("NVIDIA A100", (8, 0), 108, 80.0),))
    plan = dict(doctor.plan(ampere))
    assert plan["TMA"] == "needs capability 9.0: the pointer kernel takes over"
    assert plan["fp8"] == "needs capability 8.9: TRITON_INTERPRET=1 computes it"


def test_the_page_is_narrow_and_colour_adds_marks_only():
    machine = dataclasses.replace(without(LAPTOP, "triton", "nbval"), driver="580.95.05")
    plain, painted = doctor.full_report(machine), doctor.full_report(machine, color=True)
    assert max(map(len, plain.splitlines())) <= 100
    assert "\033" not in plain
    for code in ("1", "31", "33", "0", "1;31"):
        painted = painted.replace(f"\033[{code}m", "")
    assert painted == plain


def ask(*arguments, **options):
    return forked.run_module("gemm_course.cli.doctor", "--quick", *arguments, **options)


def test_command_in_a_pipe_is_plain_and_succeeds():
    done = ask()
    assert (done.returncode, done.stderr) == (0, "")
    assert "\033" not in done.stdout
    assert "The lessons" in done.stdout
    assert "\n  walls         answers run behind " in done.stdout
    assert "What runs how" in ask("--all").stdout


def test_command_fails_with_a_remedy_where_no_kernel_can_run():
    done = ask("--json", TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["ok"] is False
    assert result["machine"]["mode"] == "compile-only"
    assert "Unset TRITON_INTERPRET" in result["problems"][0]["remedy"]
    assert result["library"] is False


@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["page", "json"])
def test_a_reader_that_leaves_early_sees_no_traceback(arguments):
    done = ask(*arguments, before=forked.NO_READER)
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_is_the_doctor(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda trials: LAPTOP)
    assert command.main(["doctor", "--quick"]) == 0
    assert capsys.readouterr().out.startswith(doctor.report(LAPTOP))
    assert command.main(["doctor", "--all"]) == 0
    assert capsys.readouterr().out.rstrip() == doctor.full_report(LAPTOP)


@pytest.mark.parametrize(
    ("facts", "trials", "asked"),
    [
        (LAPTOP, True, [(None, False)]),
        (H200, True, [("ask of a judge", True)]),
        (dataclasses.replace(H200, kernel=None), False, [(None, True)]),
        (dataclasses.replace(H200, kernel=Trial("OSError: odd", 0.1)), True, [(None, True)]),
        (dataclasses.replace(LAPTOP, system=("Darwin", "arm64")), True, []),
        (without(LAPTOP, "triton"), True, []),
    ],
)
def test_how_answers_run_is_examined_too_and_tried_where_kernels_run_on_a_gpu(monkeypatch, facts, trials, asked):
    class Judge(contextlib.nullcontext):
        ask = "ask of a judge"

        def __enter__(self):
            return self

    got = []
    monkeypatch.setattr(judge, "Judge", Judge)
    monkeypatch.setattr(doctor.machine, "examine", lambda trials: facts)
    monkeypatch.setattr(
        doctor.isolation_report,
        "rows",
        lambda ask=None, gpu=False: got.append((ask, gpu)) or [("answers", "to exercises run apart")],
    )
    found = doctor.examine(trials)
    assert got == asked
    assert found.answers == (("answers", "to exercises run apart"),) * len(asked)
