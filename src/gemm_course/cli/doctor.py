"""`course doctor`: what works on this machine, what does not, and what to do about it.

`examine` collects the facts, `problems` judges them, `report` writes the page. So a test can judge any machine's facts.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, NamedTuple

import torch

from course_kernels import runtime
from course_kernels.bench import interface, record
from course_kernels.testing import selftest
from gemm_course.cli import missing
from gemm_course.cli.exit_codes import FAILED, OK
from gemm_course.cli.options import Json, Option
from gemm_course.cli.terminal import paint, wrap

EXAMPLES = """\
examples:
  course doctor  runs a kernel and compiles one, as a test

exit codes: 0 the course runs here (without a checkout: the library does); 1 it does not; 2 wrong usage
"""
Quick = Annotated[bool, Option("--quick", help="run and compile nothing")]
START = {"course": "make lab opens notebooks/00_start_here.ipynb", "library": "from course_kernels import group_gemm"}
NEEDED = ("jupyterlab", "ipykernel", "matplotlib", "numpy")  # to open and run a notebook
TRITON = ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm")  # its names, beside builds of torch
CUTLASS = ("nvidia-cutlass-operators", "nvidia-cutlass-dsl", "apache-tvm-ffi")


@dataclass(frozen=True)
class Machine:
    """The hardware and software of a machine, as far as the course depends on them."""

    system: tuple[str, str]  # ("Linux", "x86_64")
    packages: dict[str, str | None]  # name → version, or None
    torch_built_for: str  # "CUDA 13.0", "ROCm 7.0" or "CPU"
    triton_wanted: str | None  # by this build of torch
    nvidia_driver: bool
    gpus: tuple[str, ...]  # that torch sees
    capability: tuple[int, int] | None  # of the GPU that kernels run on, unless AMD made it
    mode: str  # of `runtime.mode()`
    cannot_launch: str  # why no kernel can run in this process, or ""
    in_checkout: bool  # of the course, rather than the library installed alone
    kernel: str | None = None  # the error of running one and comparing, "" if it worked; None: not tried
    compiler: str | None = None  # the same of compiling a kernel for an H200
    isolation: tuple[str, ...] = ()  # of answers to exercises: sentences of `isolation_report`


class Problem(NamedTuple):
    """Something wrong with a machine, and its remedy."""

    stops: bool  # whether the course (without a checkout: the library) cannot run until it is repaired
    what: str
    remedy: str


def run(as_json: Json = False, quick: Quick = False) -> int:
    """Examine this machine: show what works, what does not, and what to do about it."""
    facts = examine(trials=not quick)
    found = problems(facts)
    ok = not any(problem.stops for problem in found)
    result = {"ok": ok, "machine": asdict(facts), "works": works(facts), "problems": [each._asdict() for each in found]}
    print(json.dumps(result, indent=1) if as_json else report(facts))
    return OK if ok else FAILED


def examine(trials: bool = True) -> Machine:
    """The facts about this machine and this process. Trials of a kernel and the compiler take some seconds."""
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    packages = {"Python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", *NEEDED, *CUTLASS, "helion"):
        found = [each for of in (TRITON if name == "triton" else [name]) for each in distributions(name=of)]
        packages[name] = found[0].version if found else None
    asked = "\n".join(each for found in distributions(name="torch") for each in found.requires or [])
    triton_wanted = re.search(rf"^(?:{'|'.join(TRITON)})\s*==\s*([\d.]+)", asked, re.MULTILINE)
    hip, cuda = torch.version.hip, torch.version.cuda
    refused = attempt(lambda: runtime.check_can_launch(runtime.device()))
    facts = Machine(
        system=(platform.system(), platform.machine()),
        packages=packages,
        torch_built_for=f"ROCm {hip}" if hip else f"CUDA {cuda}" if cuda else "CPU",
        triton_wanted=triton_wanted and triton_wanted[1],
        nvidia_driver=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
        gpus=tuple(f"{g.name}, {g.multi_processor_count} SMs, {g.total_memory / 2**30:.0f} GiB" for g in gpus),
        capability=runtime.capability(),
        mode=runtime.mode(),
        cannot_launch=refused.partition(": ")[2] or refused,  # without the exception's type
        in_checkout=record.RESULTS.is_dir(),
        kernel=attempt(selftest.run_a_kernel) if trials and not refused else None,
        compiler=attempt(selftest.compile_a_kernel) if trials else None,
    )
    return replace(facts, isolation=tuple(isolation(facts)))


def attempt(action: Callable[[], object]) -> str:
    """Run something that may fail in any way. Returns its error on one line, or ""."""
    try:
        action()
    except Exception as error:  # a broken installation may raise anything
        return interface.one_line(error)
    return ""


def isolation(facts: Machine) -> Iterator[str]:
    """Sentences about the isolation of answers, if the course is installed. A kernel is tried where one ran before."""
    if facts.system[0] != "Linux" or facts.packages["triton"] is None or missing():
        return
    from gemm_course.exercises import manifest
    from gemm_course.judging import isolation_report, judge

    yield isolation_report.walls(gpu=facts.mode == "gpu")
    if facts.mode == "gpu" and facts.kernel == "":
        with judge.Judge(manifest.examiner) as opened:
            yield isolation_report.on_gpu(opened.ask)


def problems(facts: Machine) -> list[Problem]:
    """The problems of a machine; those that stop the course come first."""
    here, triton, wanted, system = facts.in_checkout, facts.packages["triton"], facts.triton_wanted, facts.system[0]
    reason, *advice = re.split(r"[.:] ", facts.cannot_launch, maxsplit=1)  # both in one sentence of `runtime`
    absent = ", ".join(name for name in NEEDED if facts.packages[name] is None)
    unseen, built_for = facts.nvidia_driver and not facts.gpus, facts.torch_built_for
    install = f"pip install 'triton=={wanted}'" if wanted else "pip install triton"
    pair = "the torch and Triton that pyproject.toml pins" if here else "a torch and a Triton that belong together"
    # Is it so? Does it stop the course? What is it? The remedy in a checkout, and the one elsewhere if that differs.
    causes = [  # the first that is so: it may be the reason for those below it
        (not triton and system != "Linux", True, f"Triton has no build for {system}",
         "open the folder in its dev container (.devcontainer/)", "use a Linux container"),
        (not triton, True, "Triton is not installed", "make lab installs it", install),
        (reason, here or facts.cannot_launch != runtime.LACKS_NUMPY, f"no kernel can run: {reason}",
         *(advice or [f"reinstall {pair}"])),
        (facts.kernel, True, f"a small kernel does not run: {facts.kernel}", f"reinstall {pair}" if facts.mode != "gpu"
         else "set TRITON_INTERPRET=1 before starting Python, to work without the GPU meanwhile"),
        (facts.compiler, True, f"a kernel does not compile: {facts.compiler}", "reinstall Triton"),
    ]  # fmt: skip
    others = [
        (absent, here, f"{absent} missing, needed by the course's notebooks", "make lab installs all",
         "for them, clone the course's repository"),
        (facts.gpus and facts.mode == "interpreter", False,
         "there is a GPU, but TRITON_INTERPRET=1 keeps kernels off it", "unset TRITON_INTERPRET to use the GPU"),
        (unseen and built_for == "CPU", False, "there is an NVIDIA driver, but torch is a CPU build",
         "delete .venv and run make lab, which picks the build for the GPU that it sees",
         "install a CUDA build of torch to use the GPU"),
        (unseen and built_for != "CPU", False, f"there is an NVIDIA driver, but torch for {built_for} sees no GPU",
         "nvidia-smi must list one; a driver older than that CUDA, or an empty CUDA_VISIBLE_DEVICES, hides it"),
        (triton and wanted and triton.split("+")[0] != wanted, False,
         f"this torch belongs to Triton {wanted}, but Triton {triton} is installed",
         f"{install}, unless the other version is intended"),
    ]  # fmt: skip
    rows = [*[row for row in causes if row[0]][:1], *(row for row in others if row[0])]
    return [Problem(stops, what, remedies[0 if here else -1]) for _, stops, what, *remedies in rows]


def works(facts: Machine) -> list[tuple[str, str]]:
    """The parts of the course that work on a machine, and how: names and sentences."""
    installed, here, on_gpu = facts.packages.get, facts.in_checkout, facts.mode == "gpu"
    runs = installed("triton") and not facts.cannot_launch and not facts.kernel
    compiles = installed("triton") and not facts.compiler
    ran, built = ("" if error is None else " (tried: right)" for error in (facts.kernel, facts.compiler))
    how = f"run on the {facts.gpus[0].split(',')[0]}" if on_gpu else "run in Triton's interpreter, on the CPU: slow"
    instead = "; torch computes products" if facts.cannot_launch == runtime.LACKS_NUMPY else ""
    capability, tma, fp8 = facts.capability, runtime.DESCRIPTOR_CAPABILITY, runtime.FP8_CAPABILITY
    rows = [
        ("kernels", how + ran if runs else f"do not run{instead}"),
        ("compiling", f"for Turing to Blackwell and AMD's CDNA, without a GPU{built}" if compiles else "does not work"),
        ("timings", "of this GPU, beside the recorded ones" if on_gpu and runs else "the recorded ones are shown"),
        ("lesson 06", capability and capability < tma and "TMA needs capability 9.0: the pointer kernel takes over"),
        ("lesson 12", capability and capability < fp8 and "fp8 needs capability 8.9: TRITON_INTERPRET=1 computes it"),
        ("lesson 09", here and not all(map(installed, CUTLASS)) and 'needs a package: pip install ".[cutlass]"'),
        ("lesson 13", here and not installed("helion") and 'needs a package: pip install ".[helion]"'),
        *zip(["isolation", ""], facts.isolation),
    ]  # fmt: skip
    return [(name, text) for name, text in rows if text]


def report(facts: Machine) -> str:
    """The facts, what works, and the problems, as a page as wide as the terminal."""
    packages = {name: version for name, version in facts.packages.items() if version}
    machine = [
        ("Python", f"{packages.pop('Python')}, {' '.join(facts.system)}"),
        ("torch", f"{packages.pop('torch')}, built for {facts.torch_built_for}"),
        ("Triton", packages.pop("triton", "missing")),
        *(("GPU", gpu) for gpu in facts.gpus or ["none that torch can use"]),
        ("packages", ", ".join(map(" ".join, packages.items())) or "none"),
    ]
    found = problems(facts)
    stopped = any(problem.stops for problem in found)
    lines = []
    for title, rows in (("This machine", machine), ("What works", works(facts))):
        lines += ["", paint(title, "bold"), *(wrap(text, f"  {name:<11}", " " * 13) for name, text in rows)]
    if found:
        lines += ["", paint("To repair" if stopped else "Worth knowing", "bold")]
    for stops, what, remedy in found:
        mark, style = ("✗", "red") if stops else ("!", "yellow")
        lines += [paint(wrap(what, f"  {mark} ", " " * 4), style), wrap(remedy, "    → ", " " * 6)]
    what = "course" if facts.in_checkout else "library"
    verdict = f"The {what} does not run here yet: see above." if stopped else f"The {what} runs here: {START[what]}"
    return "\n".join([*lines[1:], "", paint(verdict, "bold red" if stopped else "bold green")])
