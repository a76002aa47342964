"""`course doctor`: what works on this machine, what does not, and what to do about it.

`examine` collects the facts, `problems` judges them, `report` writes the page. So a test can judge any machine's facts.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

from course_kernels import runtime
from gemm_course.cli import app, machine, missing, terminal
from gemm_course.cli.exit_codes import FAILED, OK
from gemm_course.cli.machine import CUTLASS, NEEDED, Machine, Trial
from gemm_course.cli.options import Json, Option

EXAMPLES = """\
examples:
  course doctor            runs a kernel and compiles one, as a test
  course doctor --quick    runs and compiles nothing
  course doctor --json     the same for a script

exit codes: 0 the course runs here (without a checkout: the library does);
            1 it does not; 2 wrong usage
"""


class Problem(NamedTuple):
    """Something wrong with a machine, and its remedy."""

    stops: bool  # whether the course (without a checkout: the library) cannot run until it is repaired
    what: str
    remedy: str


def run(
    as_json: Json = False,
    quick: Annotated[bool, Option("--quick", help="run and compile nothing")] = False,
) -> int:
    """Examine this machine: show what works, what does not, and what to do about it."""
    facts = examine(trials=not quick)
    found = [problem._asdict() for problem in problems(facts)]
    stopped = any(problem["stops"] for problem in found)
    result = {"ok": not stopped, "machine": dataclasses.asdict(facts), "works": works(facts), "problems": found}
    print(json.dumps(result, indent=1) if as_json else report(facts))
    return FAILED if stopped else OK


def examine(trials: bool = True) -> Machine:
    """The facts about this machine, and the isolation of answers if the course is installed. Trials take seconds."""
    facts = machine.examine(trials)
    if facts.system[0] != "Linux" or facts.packages["triton"] is None or missing():
        return facts
    from gemm_course.judging import isolation_report

    sentences = [isolation_report.walls(gpu=facts.mode == "gpu")]
    if facts.mode == "gpu" and facts.kernel and facts.kernel.error is None:
        from gemm_course.exercises import manifest
        from gemm_course.judging.judge import Judge  # slow

        with Judge(manifest.examiner) as judge:
            sentences.append(isolation_report.on_gpu(judge.ask))
    return dataclasses.replace(facts, isolation=tuple(sentences))


def problems(facts: Machine) -> list[Problem]:
    """The problems of a machine; those that stop the course come first."""
    return sorted([*_broken(facts), *_unused(facts)], key=lambda problem: not problem.stops)


def _broken(facts: Machine) -> Iterator[Problem]:
    packages, here = facts.packages, facts.in_checkout
    if packages["triton"] is None and facts.system[0] != "Linux":
        remedy = "open the folder in its dev container (.devcontainer/)" if here else "use a Linux container"
        yield Problem(True, f"Triton has no build for {facts.system[0]}", remedy)
    elif packages["triton"] is None:
        pinned = f"'triton=={facts.triton_wanted}'" if facts.triton_wanted else "triton"
        yield Problem(True, "Triton is not installed", "make lab installs it" if here else f"pip install {pinned}")
    elif facts.cannot_launch:  # the sentence of runtime: the reason, then the remedy
        reason, *remedy = re.split(r"[.:] ", facts.cannot_launch, maxsplit=1)
        stops = not _runs_in_torch(facts)
        yield Problem(stops, f"no kernel can run: {reason}", *remedy or ["reinstall torch and Triton"])
    elif facts.kernel and facts.kernel.error:
        pair = "the torch and Triton that pyproject.toml pins" if here else "a torch and a Triton that belong together"
        remedy = f"reinstall {pair}"
        if facts.mode == "gpu":
            remedy = "set TRITON_INTERPRET=1 before starting Python, to work without the GPU meanwhile"
        yield Problem(True, f"a small kernel does not run: {facts.kernel.error}", remedy)
    elif facts.compiler and facts.compiler.error:
        yield Problem(True, f"a kernel does not compile: {facts.compiler.error}", "reinstall Triton")
    if absent := [name for name in NEEDED if packages[name] is None]:
        whose = "to run the notebooks" if here else "by the course's notebooks alone"
        remedy = "make lab installs all" if here else "for them, clone the course's repository"
        yield Problem(here, f"{', '.join(absent)} missing, needed {whose}", remedy)


def _runs_in_torch(facts: Machine) -> bool:
    """Whether all that is installed does without kernels: on a CPU, the library computes products in torch."""
    return not facts.in_checkout and facts.mode == "interpreter" and facts.packages["numpy"] is None


def _unused(facts: Machine) -> Iterator[Problem]:
    """A GPU that kernels do not run on, and a Triton other than the one that torch asks for."""
    if facts.gpus and facts.mode == "interpreter":
        what = "there is a GPU, but TRITON_INTERPRET=1 keeps kernels off it"
        yield Problem(False, what, "unset TRITON_INTERPRET to use the GPU")
    elif facts.nvidia_driver and not facts.gpus and facts.torch_built_for == "CPU":
        remedy = "install a CUDA build of torch to use the GPU"
        if facts.in_checkout:
            remedy = "delete .venv and run make lab, which picks the build for the GPU that it sees"
        yield Problem(False, "there is an NVIDIA driver, but torch is a CPU build", remedy)
    elif facts.nvidia_driver and not facts.gpus:
        remedy = "nvidia-smi must list one; a driver older than that CUDA, or an empty CUDA_VISIBLE_DEVICES, hides it"
        yield Problem(False, f"there is an NVIDIA driver, but torch for {facts.torch_built_for} sees no GPU", remedy)
    wanted, installed = facts.triton_wanted, facts.packages["triton"]
    if wanted and installed and installed.split("+")[0] != wanted:
        yield Problem(False, f"this torch belongs to Triton {wanted}, but Triton {installed} is installed",
                      f"pip install 'triton=={wanted}', unless the other version is intended")  # fmt: skip


def works(facts: Machine) -> list[tuple[str, str]]:
    """The parts of the course that work on a machine, and how: names and sentences."""
    on_gpu = facts.mode == "gpu"
    runs = facts.packages["triton"] and not facts.cannot_launch and not (facts.kernel and facts.kernel.error)
    how = f"run on the {facts.gpus[0].split(',')[0]}" if on_gpu else "run in Triton's interpreter, on the CPU: slow"
    compiles = facts.packages["triton"] and not (facts.compiler and facts.compiler.error)
    targets = f"for Turing to Blackwell and AMD's CDNA, without a GPU{_tried(facts.compiler)}"
    measured = "of this GPU, beside the recorded ones" if on_gpu and runs else "the recorded ones are shown"
    instead = "do not run; torch computes products" if _runs_in_torch(facts) else "do not run"
    rows = [("kernels", how + _tried(facts.kernel) if runs else instead),
            ("compiling", targets if compiles else "does not work"), ("timings", measured)]  # fmt: skip
    if facts.capability and facts.capability < runtime.DESCRIPTOR_CAPABILITY:
        rows.append(("lesson 06", "TMA needs capability 9.0: the pointer kernel takes over"))
    if facts.capability and facts.capability < runtime.FP8_CAPABILITY:
        rows.append(("lesson 12", "fp8 needs capability 8.9: TRITON_INTERPRET=1 computes it"))
    for lesson, extra, names in (("lesson 09", "cutlass", CUTLASS), ("lesson 13", "helion", ("helion",))):
        if facts.in_checkout and not all(map(facts.packages.get, names)):
            rows.append((lesson, f'needs a package: pip install ".[{extra}]"'))
    return [*rows, *zip(["isolation", ""], facts.isolation)]


def _tried(trial: Trial | None) -> str:
    return f" (tried: right, {trial.seconds:.1f} s)" if trial else ""


def report(facts: Machine, paint: Callable[[str, str], str] = terminal.paint) -> str:
    """The facts, what works, and the problems, as a page as wide as the terminal."""
    packages = {name: version for name, version in facts.packages.items() if version}
    first = [
        ("Python", f"{packages.pop('Python')}, {' '.join(facts.system)}"),
        ("torch", f"{packages.pop('torch')}, built for {facts.torch_built_for}"),
        ("Triton", packages.pop("triton", "missing")),
        *zip(["GPU", *[""] * len(facts.gpus)], facts.gpus or ["none that torch can use"]),
        ("packages", ", ".join(f"{name} {version}" for name, version in packages.items()) or "none"),
    ]
    lines = []
    for title, rows in (("This machine", first), ("What works", works(facts))):
        lines += [paint(title, "bold"), *(terminal.wrap(text, f"  {name:<11}", " " * 13) for name, text in rows), ""]
    found = problems(facts)
    stopped = any(problem.stops for problem in found)
    if found:
        lines.append(paint("To repair" if stopped else "Worth knowing", "bold"))
    for problem in found:
        mark = paint("✗", "red") if problem.stops else paint("!", "yellow")
        lines += [f"  {mark} {terminal.wrap(problem.what, '', '    ', taken=4)}",
                  terminal.wrap(problem.remedy, "    → ", " " * 6)]  # fmt: skip
    what, ready = "library", "from course_kernels import group_gemm"
    if facts.in_checkout:
        what, ready = "course", "make lab opens notebooks/00_start_here.ipynb"
    verdict = f"The {what} does not run here yet: see above." if stopped else f"The {what} runs here: {ready}"
    return "\n".join([*lines, *([""] if found else []), paint(verdict, "bold red" if stopped else "bold green")])


if __name__ == "__main__":
    sys.exit(app.main(["doctor", *sys.argv[1:]]))
