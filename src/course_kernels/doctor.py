"""Says what this machine has, and what of the course runs on it and how: ``python -m course_kernels.doctor``.

``machine.examine`` collects the facts, ``problems`` judges them, ``report`` tells them: so any machine can be judged on
any other. ``--json`` prints everything for a program, ``--quick`` leaves out the two trials (a kernel run, a kernel
compiled). The exit code is 0 where the course can run, else 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import textwrap

from course_kernels import runtime
from course_kernels.machine import FOR_TESTS, NEEDED, Gpu, Machine, Trial, examine

OLDEST_PYTHON = (3, 10)
_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something to know about a machine.

    Attributes:
        stops: whether the course cannot run until it is repaired.
        what: what is the case.
        remedy: what to do.
    """

    stops: bool
    what: str
    remedy: str


def problems(machine: Machine) -> list[Problem]:
    """What stands in the way of the course on a machine, and what is worth knowing.

    Args:
        machine: the facts.

    Returns:
        Problems, those that stop the course first.
    """
    found = [*_missing(machine), *_kernels_do_not_run(machine), *_gpu_not_used(machine)]
    wanted, have = machine.triton_wanted, machine.packages["triton"]
    if wanted and have and have.split("+")[0] != wanted:
        found.append(Problem(False, f"this torch belongs to Triton {wanted}, and Triton {have} is installed",
                             f"pip install 'triton=={wanted}', unless the other version is on purpose"))  # fmt: skip
    return sorted(found, key=lambda problem: not problem.stops)


def _missing(machine: Machine) -> list[Problem]:
    found = []
    if machine.python < OLDEST_PYTHON:
        have = ".".join(map(str, machine.python))
        found.append(Problem(True, f"Python {have} is older than 3.10", "make lab PYTHON=python3.12, or any from 3.10"))
    if machine.packages["triton"] is None:
        what, remedy = "Triton is not installed", "make lab installs it"
        if machine.system[0] != "Linux":
            what = f"Triton has no build for {machine.system[0]}"
            remedy = "open the folder in its dev container (.devcontainer/)"
        found.append(Problem(True, what, remedy))
    for names, stops, purpose in ((NEEDED, True, "to run the notebooks"), (FOR_TESTS, False, "to run the tests")):
        missing = [name for name in names if machine.packages[name] is None]
        if missing:
            target = "make lab" if stops else "make test"
            found.append(Problem(stops, f"{', '.join(missing)} missing, needed {purpose}", f"{target} installs it"))
    return found


def _kernels_do_not_run(machine: Machine) -> list[Problem]:
    if machine.packages["triton"] is None:
        return []
    found = []
    if machine.cannot_launch:
        # The sentences of runtime: the reason, then what to do.
        what, dot, remedy = machine.cannot_launch.partition(". ")
        if not dot:
            what, _, remedy = machine.cannot_launch.rpartition(": ")
        found.append(Problem(True, f"no kernel can run: {what or remedy}", remedy))
    if machine.kernel and machine.kernel.error:
        remedy = "pip install --force-reinstall the torch and Triton that pyproject.toml pins"
        if machine.mode == "gpu":
            remedy = "set TRITON_INTERPRET=1 before starting Python, to work without the GPU meanwhile"
        found.append(Problem(True, f"a small kernel does not run: {machine.kernel.error}", remedy))
    if machine.compiler and machine.compiler.error:
        found.append(Problem(True, f"a kernel does not compile: {machine.compiler.error}",
                             "lessons that read PTX need the compiler: reinstall Triton"))  # fmt: skip
    return found


def _gpu_not_used(machine: Machine) -> list[Problem]:
    if machine.gpus and machine.mode == "interpreter":
        return [Problem(False, "there is a GPU, and TRITON_INTERPRET=1 keeps kernels off it",
                        "unset TRITON_INTERPRET to use the GPU")]  # fmt: skip
    if machine.gpus or machine.driver is None:
        return []
    driver = "an NVIDIA driver" + ("" if machine.driver == "present" else f" ({machine.driver})")
    if machine.torch_built_for == "CPU":
        return [Problem(False, f"there is {driver}, and torch is a CPU build that cannot use it",
                        "delete .venv and run make lab, which picks the build for the GPU that it sees")]  # fmt: skip
    return [Problem(False, f"there is {driver}, and torch for {machine.torch_built_for} sees no GPU",
                    "nvidia-smi must list one; a driver older than that CUDA, and an empty CUDA_VISIBLE_DEVICES, "
                    "hide it")]  # fmt: skip


def plan(machine: Machine) -> list[tuple[str, str]]:
    """Each part of the course, and how it runs on a machine.

    Args:
        machine: the facts.

    Returns:
        Pairs of a part and a sentence.
    """
    lab = machine.packages["jupyterlab"]
    tests = all(machine.packages[name] for name in FOR_TESTS)
    records = "not found: this is no checkout of the course"
    if machine.records is not None:
        count = len(machine.records)
        records = f"{count} record{'' if count == 1 else 's'} of an H200, drawn in the lessons on any machine"
    on_gpu = machine.mode == "gpu"
    timings = "of this GPU, beside the recorded ones" if on_gpu else "none here; the recorded ones are shown"
    return [
        ("notebooks", f"in JupyterLab {lab}: make lab" if lab else "cannot be opened yet"),
        ("kernels", _how_kernels_run(machine) + _outcome(machine.kernel)),
        *_features(machine),
        ("compiling", "for Turing to Blackwell and AMD's CDNA, with no GPU" + _outcome(machine.compiler)),
        ("live timings", timings),
        ("tests", "make test" if tests else "make test installs what they need"),
        ("GPU tests", "run: python -m pytest -m gpu" if on_gpu else "skip themselves, and say why"),
        ("records", records),
    ]


def _how_kernels_run(machine: Machine) -> str:
    if machine.packages["triton"] is None or machine.cannot_launch:
        return "do not run yet"
    if machine.mode == "gpu":
        return f"compiled, on the {machine.gpus[0].name}"
    return "in Triton's interpreter, on the CPU: slow, same answers"


def _features(machine: Machine) -> list[tuple[str, str]]:
    """The lessons that ask for newer hardware."""
    if machine.mode != "gpu" or machine.gpus[0].capability is None:
        return [("TMA and fp8", "in the interpreter")] if machine.mode == "interpreter" else []
    capability = machine.gpus[0].capability
    rows = []
    for name, oldest, otherwise in (
        ("TMA", runtime.DESCRIPTOR_CAPABILITY, "the pointer kernel takes over"),
        ("fp8", runtime.FP8_CAPABILITY, "TRITON_INTERPRET=1 computes it"),
    ):
        needs = "needs capability {}.{}: ".format(*oldest) + otherwise
        rows.append((name, "in hardware" if capability >= oldest else needs))
    return rows


def _outcome(trial: Trial | None) -> str:
    if trial is None:
        return ""
    return f" (tried: failed after {trial.seconds:.1f} s)" if trial.error else f" (tried: right, {trial.seconds:.1f} s)"


# ---- report


def report(machine: Machine, color: bool = False) -> str:
    """The facts, the plan and the problems as a page of text.

    Args:
        machine: the facts.
        color: mark headings and problems for a terminal.

    Returns:
        Lines of at most 100 characters.
    """

    def paint(code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if color else text

    def rows(pairs: list[tuple[str, str]]) -> list[str]:
        indent = " " * 16
        return [
            textwrap.fill(value, _WIDTH, initial_indent=f"  {name:<14}", subsequent_indent=indent)
            for name, value in pairs
        ]

    found = problems(machine)
    stopped = any(problem.stops for problem in found)
    lines = [paint("1", "This machine"), *rows(_facts(machine)), "", paint("1", "What runs how"), *rows(plan(machine))]
    if found:
        lines += ["", paint("1", "To repair" if stopped else "Worth knowing")]
    for problem in found:
        mark = paint("31", "✗") if problem.stops else paint("33", "!")
        lines.append(f"  {mark} " + textwrap.fill(problem.what, _WIDTH - 4, subsequent_indent="    "))
        lines.append(textwrap.fill(f"→ {problem.remedy}", _WIDTH, initial_indent="    ", subsequent_indent="      "))
    verdict = "The course runs here. Start with notebooks/00_start_here.ipynb: make lab opens it."
    if stopped:
        verdict = "The course does not run here yet: see 'To repair'."
    return "\n".join([*lines, "", paint("1;31" if stopped else "1;32", verdict)])


def _facts(machine: Machine) -> list[tuple[str, str]]:
    def version(name: str) -> str:
        return machine.packages[name] or "missing"

    memory = "" if machine.memory_gib is None else f", {machine.memory_gib:.0f} GiB"
    cores = f"{machine.cores} core{'s' if machine.cores != 1 else ''}"
    gpus = [_describe(gpu) for gpu in machine.gpus] or ["none that torch can use"]
    return [
        ("Python", ".".join(map(str, machine.python)) + f", {' '.join(machine.system)}, {cores}{memory}"),
        ("torch", f"{version('torch')}, built for {machine.torch_built_for}"),
        ("Triton", version("triton")),
        ("NumPy", version("numpy")),
        *[("GPU" if i == 0 else "", gpu) for i, gpu in enumerate(gpus)],
        ("NVIDIA driver", machine.driver or "none"),
        *[(name, version(name)) for name in ("jupyterlab", "ipykernel", "matplotlib", *FOR_TESTS)],
    ]


def _describe(gpu: Gpu) -> str:
    capability = "" if gpu.capability is None else "capability {}.{}, ".format(*gpu.capability)
    return f"{gpu.name}: {capability}{gpu.sms} SMs, {gpu.memory_gib:.0f} GiB"


def main(arguments: list[str] | None = None) -> int:
    """Print the report, or the facts as JSON.

    Args:
        arguments: of the command line; None takes the process's own.

    Returns:
        0 where the course can run, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="python -m course_kernels.doctor", description="What this machine has, and what of the course runs how."
    )
    parser.add_argument("--json", action="store_true", help="facts, plan and problems as JSON")
    parser.add_argument("--quick", action="store_true", help="run and compile nothing")
    options = parser.parse_args(arguments)
    machine = examine(trials=not options.quick)
    found = problems(machine)
    stopped = any(problem.stops for problem in found)
    if options.json:
        result = {"ok": not stopped, "machine": dataclasses.asdict(machine), "plan": dict(plan(machine))}
        print(json.dumps({**result, "problems": [dataclasses.asdict(problem) for problem in found]}, indent=1))
    else:
        print(report(machine, color=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return int(stopped)


if __name__ == "__main__":
    sys.exit(main())
