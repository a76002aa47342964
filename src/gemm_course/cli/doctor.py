"""Says what this machine has, and what of the course runs on it and how: ``python -m gemm_course.cli.doctor``.

``machine.examine`` collects the facts, ``problems`` judges them, ``report`` tells them: so any machine can be judged on
any other. ``--json`` prints everything for a program, ``--quick`` leaves out the two trials (a kernel run, a kernel
compiled). In a checkout of the course the exit code is 0 where the course can run, else 1; where the library alone is
installed, the library decides.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import textwrap

from course_kernels import runtime
from gemm_course.cli.machine import CUTLASS, FOR_TESTS, NEEDED, Gpu, Machine, Trial, examine

OLDEST_PYTHON = (3, 10)
_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something to know about a machine.

    Attributes:
        stops: whether the course, or the library installed alone, cannot run until it is repaired.
        what: what is the case.
        remedy: what to do.
        notebooks_only: whether the library runs all the same.
    """

    stops: bool
    what: str
    remedy: str
    notebooks_only: bool = False


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
        remedy = "install into a virtual environment of Python 3.10 or newer"
        if _is_checkout(machine):
            remedy = "make lab PYTHON=python3.12, or any from 3.10"
        found.append(Problem(True, f"Python {have} is older than 3.10", remedy))
    if machine.packages["triton"] is None:
        what, remedy = (
            "Triton is not installed",
            "make lab installs it" if _is_checkout(machine) else _pip_triton(machine),
        )
        if machine.system[0] != "Linux":
            what = f"Triton has no build for {machine.system[0]}"
            remedy = "work in a container of Linux"
            if _is_checkout(machine):
                remedy = "open the folder in its dev container (.devcontainer/)"
        found.append(Problem(True, what, remedy))
    # The interpreter's want of NumPy is told with the kernels that do not run.
    needed = [name for name in NEEDED if not (name == "numpy" and _interpreter_lacks_numpy(machine))]
    missing = [name for name in needed if machine.packages[name] is None]
    if missing:
        what = f"{', '.join(missing)} missing, needed to run the notebooks"
        remedy = "make lab installs it"
        if not _is_checkout(machine):
            remedy = "for the notebooks, clone the course's repository: it installs what they need"
        found.append(Problem(_is_checkout(machine), what, remedy, notebooks_only=True))
    missing = [name for name in FOR_TESTS if machine.packages[name] is None]
    if missing and _is_checkout(machine):
        what = f"{', '.join(missing)} missing, needed to run the tests"
        found.append(Problem(False, what, "make test installs it", notebooks_only=True))
    return found


def _is_checkout(machine: Machine) -> bool:
    return machine.records is not None


def _pip_triton(machine: Machine) -> str:
    return f"pip install 'triton=={machine.triton_wanted}'" if machine.triton_wanted else "pip install triton"


def _interpreter_lacks_numpy(machine: Machine) -> bool:
    """Whether ``import triton`` fails: set up for its interpreter, it imports NumPy, also to compile only."""
    return machine.mode == "interpreter" and machine.packages["triton"] is not None and not machine.packages["numpy"]


def _kernels_do_not_run(machine: Machine) -> list[Problem]:
    if machine.packages["triton"] is None:
        return []
    if _interpreter_lacks_numpy(machine):
        what = "no kernel can run, and none can be compiled: Triton's interpreter needs numpy, which is not installed"
        return [Problem(True, what, "pip install numpy")]
    found = []
    if machine.cannot_launch:
        # The sentences of runtime: the reason, then what to do.
        what, dot, remedy = machine.cannot_launch.partition(". ")
        if not dot:
            what, _, remedy = machine.cannot_launch.rpartition(": ")
        found.append(Problem(True, f"no kernel can run: {what or remedy}", remedy))
    if machine.kernel and machine.kernel.error:
        remedy = "pip install --force-reinstall a torch and a Triton that belong together"
        if _is_checkout(machine):
            remedy = "pip install --force-reinstall the torch and Triton that pyproject.toml pins"
        if machine.mode == "gpu":
            remedy = "set TRITON_INTERPRET=1 before starting Python, to work without the GPU meanwhile"
        found.append(Problem(True, f"a small kernel does not run: {machine.kernel.error}", remedy))
    if machine.compiler and machine.compiler.error:
        readers = "lessons that read PTX need" if _is_checkout(machine) else "course_kernels.codegen needs"
        found.append(Problem(True, f"a kernel does not compile: {machine.compiler.error}",
                             f"{readers} the compiler: reinstall Triton"))  # fmt: skip
    return found


def _gpu_not_used(machine: Machine) -> list[Problem]:
    if machine.gpus and machine.mode == "interpreter":
        return [Problem(False, "there is a GPU, and TRITON_INTERPRET=1 keeps kernels off it",
                        "unset TRITON_INTERPRET to use the GPU")]  # fmt: skip
    if machine.gpus or machine.driver is None:
        return []
    driver = "an NVIDIA driver" + ("" if machine.driver == "present" else f" ({machine.driver})")
    if machine.torch_built_for == "CPU":
        remedy = "install a CUDA build of torch to use the GPU"
        if _is_checkout(machine):
            remedy = "delete .venv and run make lab, which picks the build for the GPU that it sees"
        return [Problem(False, f"there is {driver}, and torch is a CPU build that cannot use it", remedy)]
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
    notebooks = f"in JupyterLab {lab}: make lab" if lab else "cannot be opened yet"
    tests = all(machine.packages[name] for name in FOR_TESTS)
    tests = "make test" if tests else "make test installs what they need"
    on_gpu = machine.mode == "gpu"
    gpu_tests = "run: python -m pytest -m gpu" if on_gpu else "skip themselves, and say why"
    recorded = "the recorded ones are shown"
    if _is_checkout(machine):
        count = len(machine.records)
        records = f"{count} record{'' if count == 1 else 's'} of an H200, drawn in the lessons on any machine"
    else:
        notebooks = tests = gpu_tests = "not here: they are in the course's repository"
        records, recorded = "not found: this is no checkout of the course", "they need kernels on a GPU"
    timings = f"none here; {recorded}"
    if on_gpu:
        timings = "none until kernels run" if _why_no_kernel(machine) else "of this GPU, beside the recorded ones"
    return [
        ("notebooks", notebooks),
        ("kernels", _how_kernels_run(machine)),
        *_features(machine),
        ("compiling", _how_kernels_compile(machine)),
        *machine.answers,
        ("CUTLASS", _what_cutlass_gives(machine)),
        ("live timings", timings),
        ("tests", tests),
        ("GPU tests", gpu_tests),
        ("records", records),
    ]


def _why_no_kernel(machine: Machine) -> str | None:
    """Why kernels do not run, as far as is known, in a few words."""
    if machine.packages["triton"] is None:
        return "Triton is missing"
    if _interpreter_lacks_numpy(machine):
        return "Triton's interpreter needs numpy"
    if machine.cannot_launch:
        return "see 'To repair'"
    return machine.kernel.error if machine.kernel else None


def _how_kernels_run(machine: Machine) -> str:
    if why := _why_no_kernel(machine):
        return f"do not run: {why}"
    how = "in Triton's interpreter, on the CPU: slow, same answers"
    if machine.mode == "gpu":
        how = f"compiled, on the {machine.gpus[0].name}"
    return how + _outcome(machine.kernel)


def _how_kernels_compile(machine: Machine) -> str:
    why = machine.compiler.error if machine.compiler else None
    if machine.packages["triton"] is None or _interpreter_lacks_numpy(machine):
        why = _why_no_kernel(machine)
    if why:
        return f"does not run: {why}"
    return "for Turing to Blackwell and AMD's CDNA, with no GPU" + _outcome(machine.compiler)


def _features(machine: Machine) -> list[tuple[str, str]]:
    """The lessons that ask for newer hardware."""
    if _why_no_kernel(machine):
        return [("TMA and fp8", "do not run, as no kernel does")]
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


def _what_cutlass_gives(machine: Machine) -> str:
    readers = "lesson 09 and course_kernels.cutlass_ops" if _is_checkout(machine) else "course_kernels.cutlass_ops"
    if not all(machine.packages[name] for name in CUTLASS.values()):
        extra = ".[cutlass]" if _is_checkout(machine) else "grouped-gemm-course[cutlass]"
        return f'not here, and optional: pip install "{extra}" brings what {readers} read'
    capability = machine.gpus[0].capability if machine.mode == "gpu" else None
    runs = {9: "they run here, as grouped_mm's kernel for Hopper does", 10: "NVIDIA's run here"}
    how = runs.get(capability[0] if capability else 0, "to run, they want Hopper or Blackwell")
    if machine.kept:
        how += f" ({len(machine.kept)} compiled so far, in {sum(machine.kept):.0f} s together, and kept)"
    return f"{readers} find operators and compile them; {how}"


def _outcome(trial: Trial | None) -> str:
    """Appended to a claim that a trial, where there was one, has proved."""
    return "" if trial is None else f" (tried: right, {trial.seconds:.1f} s)"


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
    return "\n".join([*lines, "", paint("1;31" if stopped else "1;32", _verdict(machine, found))])


def _verdict(machine: Machine, found: list[Problem]) -> str:
    stopping = [problem for problem in found if problem.stops]
    library_runs = all(problem.notebooks_only for problem in stopping)
    if not _is_checkout(machine):
        if not library_runs:
            return "The library does not run here yet: see 'To repair'."
        needs = "" if machine.packages["jupyterlab"] else "JupyterLab and "
        return (
            "The library runs here: from course_kernels import group_gemm.\n"
            f"The course's notebooks need {needs}a clone of its repository."
        )
    if not stopping:
        return "The course runs here. Start with notebooks/00_start_here.ipynb: make lab opens it."
    verdict = "The course does not run here yet: see 'To repair'."
    return f"{verdict}\nThe library runs here: from course_kernels import group_gemm." if library_runs else verdict


def _facts(machine: Machine) -> list[tuple[str, str]]:
    def version(name: str) -> str:
        return machine.packages[name] or "missing"

    cutlass = ", ".join(f"{short} {version(name)}" for short, name in CUTLASS.items())
    memory = "" if machine.memory_gib is None else f", {machine.memory_gib:.0f} GiB"
    cores = f"{machine.cores} core{'s' if machine.cores != 1 else ''}"
    gpus = [_describe(gpu) for gpu in machine.gpus] or ["none that torch can use"]
    return [
        ("Python", ".".join(map(str, machine.python)) + f", {' '.join(machine.system)}, {cores}{memory}"),
        ("torch", f"{version('torch')}, built for {machine.torch_built_for}"),
        ("Triton", version("triton")),
        ("NumPy", version("numpy")),
        ("CUTLASS", cutlass if any(machine.packages[name] for name in CUTLASS.values()) else "not installed"),
        *[("GPU" if i == 0 else "", gpu) for i, gpu in enumerate(gpus)],
        ("NVIDIA driver", machine.driver or "none"),
        *[(name, version(name)) for name in ("jupyterlab", "ipykernel", "matplotlib", *FOR_TESTS)],
    ]


def _describe(gpu: Gpu) -> str:
    capability = "" if gpu.capability is None else "capability {}.{}, ".format(*gpu.capability)
    return f"{gpu.name}: {capability}{gpu.sms} SMs, {gpu.memory_gib:.0f} GiB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options, here and as `course doctor`."""
    parser.description = "What this machine has, and what of the course runs how."
    parser.add_argument("--json", action="store_true", help="facts, plan and problems as JSON")
    parser.add_argument("--quick", action="store_true", help="run and compile nothing")


def main(arguments: list[str] | None = None) -> int:
    """Print the report, or the facts as JSON.

    Args:
        arguments: of the command line; None takes the process's own.

    Returns:
        0 where the course can run (outside a checkout: the library), else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m gemm_course.cli.doctor")
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Print the report, or the facts as JSON.

    Args:
        options: of `add_arguments`.

    Returns:
        0 where the course can run (outside a checkout: the library), else 1.
    """
    machine = examine(trials=not options.quick)
    found = problems(machine)
    stopped = any(problem.stops for problem in found)
    if options.json:
        library = all(problem.notebooks_only for problem in found if problem.stops)
        result = {"ok": not stopped, "library": library, "machine": dataclasses.asdict(machine)}
        result |= {"plan": dict(plan(machine)), "problems": [dataclasses.asdict(problem) for problem in found]}
        text = json.dumps(result, indent=1)
    else:
        text = report(machine, color=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        # Python flushes once more when it ends, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(stopped)


if __name__ == "__main__":
    sys.exit(main())
