"""`course doctor`: what this machine has, and what of the course runs on it and how.

`examine` collects the facts, `problems` judges them, `report` writes the page for a learner, `full_report` the page
with all facts. So a test can judge the facts of any machine.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Annotated

from typer import Option

from course_kernels import runtime
from gemm_course.cli import app, machine, terminal
from gemm_course.cli.exit_codes import FAILED, OK
from gemm_course.cli.machine import CUTLASS, FOR_TESTS, NEEDED, Machine, Trial
from gemm_course.judging import isolation_report

EXAMPLES = """\
examples:
  course doctor            what a learner needs; a kernel is run, and one compiled, to prove it
  course doctor --all      everything: packages, tests, what confines the answers to exercises
  course doctor --quick    runs and compiles nothing
  course doctor --json     everything, for a program

exit codes: 0 the course can run (where the library alone is installed: the library); 1 it cannot; 2 wrong usage
"""
OLDEST_PYTHON = (3, 10)
_WIDTH = 100


def run(
    as_json: Annotated[bool, Option("--json", help="facts, plan and problems as JSON")] = False,
    quick: Annotated[bool, Option("--quick", help="run and compile nothing")] = False,
    every: Annotated[bool, Option("--all", help="show everything that is known")] = False,
) -> int:
    """What this machine has, and what of the course runs how."""
    facts = examine(trials=not quick)
    found = problems(facts)
    stopped = any(problem.stops for problem in found)
    if as_json:
        library = all(problem.notebooks_only for problem in found if problem.stops)
        result = {"ok": not stopped, "library": library, "machine": dataclasses.asdict(facts)}
        result |= {"plan": dict(plan(facts)), "problems": [dataclasses.asdict(problem) for problem in found]}
        print(json.dumps(result, indent=1))
    else:
        show = full_report if every else report
        print(show(facts, color=terminal.has_styles(sys.stdout)))
        if not every:
            print("`course doctor --all` shows everything.")
    return FAILED if stopped else OK


def examine(trials: bool = True) -> Machine:
    """The facts about this machine, and how answers to exercises run on it. Trials of kernels take some seconds."""
    facts = machine.examine(trials)
    if facts.system[0] != "Linux" or facts.packages["triton"] is None:
        return facts
    # Where no kernel runs at all, there is nothing to say of one that runs confined.
    if not (facts.mode == "gpu" and facts.kernel and facts.kernel.error is None):
        return dataclasses.replace(facts, answers=tuple(isolation_report.rows(gpu=facts.mode == "gpu")))
    from gemm_course.judging.judge import Judge  # slow

    with Judge() as judge:
        return dataclasses.replace(facts, answers=tuple(isolation_report.rows(judge.ask, gpu=True)))


# ---- problems


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something to know about a machine, and what to do about it."""

    stops: bool  # whether the course, or the library installed alone, cannot run until it is repaired
    what: str
    remedy: str
    notebooks_only: bool = False  # whether the library runs all the same
    for_tests: bool = False  # whether only the tests need it; a learner's page leaves it out


def problems(facts: Machine) -> list[Problem]:
    """What keeps the course from running on a machine, and what is worth knowing; problems that stop it come first."""
    found = [*_missing(facts), *_kernels_do_not_run(facts), *_not_used(facts)]
    return sorted(found, key=lambda problem: not problem.stops)


def _missing(facts: Machine) -> Iterator[Problem]:
    here = facts.in_checkout
    if facts.python < OLDEST_PYTHON:
        remedy = "install into a virtual environment of Python 3.10 or newer"
        yield Problem(True, f"Python {'.'.join(map(str, facts.python))} is older than 3.10",
                      "make lab PYTHON=python3.12, or any from 3.10" if here else remedy)  # fmt: skip
    if facts.packages["triton"] is None and facts.system[0] != "Linux":
        remedy = "open the folder in its dev container (.devcontainer/)" if here else "work in a container of Linux"
        yield Problem(True, f"Triton has no build for {facts.system[0]}", remedy)
    elif facts.packages["triton"] is None:
        pinned = f"'triton=={facts.triton_wanted}'" if facts.triton_wanted else "triton"
        yield Problem(True, "Triton is not installed", "make lab installs it" if here else f"pip install {pinned}")
    # That the interpreter needs NumPy is reported with the kernels that do not run.
    needed = [name for name in NEEDED if not (name == "numpy" and _interpreter_lacks_numpy(facts))]
    if missing := [name for name in needed if facts.packages[name] is None]:
        remedy = "for the notebooks, clone the course's repository: it installs what they need"
        yield Problem(here, f"{', '.join(missing)} missing, needed to run the notebooks",
                      "make lab installs it" if here else remedy, notebooks_only=True)  # fmt: skip
    if here and (missing := [name for name in FOR_TESTS if facts.packages[name] is None]):
        what = f"{', '.join(missing)} missing, needed to run the tests"
        yield Problem(False, what, "make test installs it", notebooks_only=True, for_tests=True)


def _interpreter_lacks_numpy(facts: Machine) -> bool:
    """Whether `import triton` fails: set up for its interpreter, it imports NumPy, also to compile only."""
    return facts.mode == "interpreter" and facts.packages["triton"] is not None and not facts.packages["numpy"]


def _kernels_do_not_run(facts: Machine) -> Iterator[Problem]:
    if facts.packages["triton"] is None:
        return
    if _interpreter_lacks_numpy(facts):
        what = "no kernel can run, and none can be compiled: Triton's interpreter needs numpy, which is not installed"
        yield Problem(facts.in_checkout, what, "pip install numpy", notebooks_only=True)
        return
    if facts.cannot_launch:
        # The sentences of runtime: the reason, then what to do.
        what, dot, remedy = facts.cannot_launch.partition(". ")
        if not dot:
            what, _, remedy = facts.cannot_launch.rpartition(": ")
        yield Problem(True, f"no kernel can run: {what or remedy}", remedy)
    if facts.kernel and facts.kernel.error:
        pinned, pair = "the torch and Triton that pyproject.toml pins", "a torch and a Triton that belong together"
        remedy = f"pip install --force-reinstall {pinned if facts.in_checkout else pair}"
        if facts.mode == "gpu":
            remedy = "set TRITON_INTERPRET=1 before starting Python, to work without the GPU meanwhile"
        yield Problem(True, f"a small kernel does not run: {facts.kernel.error}", remedy)
    if facts.compiler and facts.compiler.error:
        readers = "lessons that read PTX need" if facts.in_checkout else "course_kernels.codegen needs"
        what = f"a kernel does not compile: {facts.compiler.error}"
        yield Problem(True, what, f"{readers} the compiler: reinstall Triton")


def _not_used(facts: Machine) -> Iterator[Problem]:
    """A GPU that kernels do not run on, and a Triton other than the one that torch asks for."""
    driver = "an NVIDIA driver" if facts.driver == "present" else f"an NVIDIA driver ({facts.driver})"
    if facts.gpus and facts.mode == "interpreter":
        what = "there is a GPU, and TRITON_INTERPRET=1 keeps kernels off it"
        yield Problem(False, what, "unset TRITON_INTERPRET to use the GPU")
    elif not facts.gpus and facts.driver and facts.torch_built_for == "CPU":
        remedy = "install a CUDA build of torch to use the GPU"
        if facts.in_checkout:
            remedy = "delete .venv and run make lab, which picks the build for the GPU that it sees"
        yield Problem(False, f"there is {driver}, and torch is a CPU build that cannot use it", remedy)
    elif not facts.gpus and facts.driver:
        yield Problem(False, f"there is {driver}, and torch for {facts.torch_built_for} sees no GPU",
                      "nvidia-smi must list one; a driver older than that CUDA, and an empty CUDA_VISIBLE_DEVICES, "
                      "hide it")  # fmt: skip
    wanted, have = facts.triton_wanted, facts.packages["triton"]
    if wanted and have and have.split("+")[0] != wanted:
        yield Problem(False, f"this torch belongs to Triton {wanted}, and Triton {have} is installed",
                      f"pip install 'triton=={wanted}', unless the other version is on purpose")  # fmt: skip


# ---- plan


def plan(facts: Machine) -> list[tuple[str, str]]:
    """Each part of the course, and how it runs on a machine, in a sentence."""
    lab, on_gpu = facts.packages["jupyterlab"], facts.mode == "gpu"
    notebooks = f"in JupyterLab {lab}: make lab" if lab else "cannot be opened yet"
    tests = "make test" if all(map(facts.packages.get, FOR_TESTS)) else "make test installs what they need"
    gpu_tests = "run: python -m pytest -m gpu" if on_gpu else "skip themselves, and say why"
    if facts.in_checkout:
        count, recorded = len(facts.records), "the recorded ones are shown"
        records = f"{count} record{'' if count == 1 else 's'} of Hopper GPUs, drawn in the lessons on any machine"
    else:
        notebooks = tests = gpu_tests = "not here: they are in the course's repository"
        records, recorded = "not found: this is no checkout of the course", "they need kernels on a GPU"
    timings = f"none here; {recorded}"
    if on_gpu:
        timings = "none until kernels run" if _why_no_kernel(facts) else "of this GPU, beside the recorded ones"
    return [
        ("notebooks", notebooks),
        ("kernels", _how_kernels_run(facts)),
        *_without_kernels(facts),
        *_hardware_features(facts),
        ("compiling", _how_kernels_compile(facts)),
        *facts.answers,
        ("CUTLASS", _what_cutlass_gives(facts)),
        ("live timings", timings),
        ("tests", tests),
        ("GPU tests", gpu_tests),
        ("records", records),
    ]


def _why_no_kernel(facts: Machine) -> str | None:
    """Why kernels do not run, as far as is known, in a few words."""
    if facts.packages["triton"] is None:
        return "Triton is missing"
    if _interpreter_lacks_numpy(facts):
        return "Triton's interpreter needs numpy"
    if facts.cannot_launch:
        return "see 'To repair'"
    return facts.kernel.error if facts.kernel else None


def _how_kernels_run(facts: Machine) -> str:
    if why := _why_no_kernel(facts):
        return f"do not run: {why}"
    how = "in Triton's interpreter, on the CPU: slow, same answers"
    if facts.mode == "gpu":
        how = f"compiled, on the {facts.gpus[0].name}"
    return how + _tried(facts.kernel)


def _without_kernels(facts: Machine) -> list[tuple[str, str]]:
    """What the library does where its kernels do not run, for the lack of NumPy."""
    if not _interpreter_lacks_numpy(facts):
        return []
    row = "all products and gradients run on CPU tensors, by torch; plans, and kernels by name, need numpy"
    return [("library", row)]


def _how_kernels_compile(facts: Machine) -> str:
    why = facts.compiler.error if facts.compiler else None
    if facts.packages["triton"] is None or _interpreter_lacks_numpy(facts):
        why = _why_no_kernel(facts)
    how = f"for Turing to Blackwell and AMD's CDNA, with no GPU{_tried(facts.compiler)}"
    return f"does not run: {why}" if why else how


def _hardware_features(facts: Machine) -> list[tuple[str, str]]:
    """The lessons that ask for newer hardware."""
    if _why_no_kernel(facts):
        return [("TMA and fp8", "do not run, as no kernel does")]
    if facts.mode != "gpu" or facts.gpus[0].capability is None:
        return [("TMA and fp8", "in the interpreter")] if facts.mode == "interpreter" else []
    features = {
        "TMA": (runtime.DESCRIPTOR_CAPABILITY, "the pointer kernel takes over"),
        "fp8": (runtime.FP8_CAPABILITY, "TRITON_INTERPRET=1 computes it"),
    }
    has = facts.gpus[0].capability
    return [
        (name, "in hardware" if has >= oldest else "needs capability {}.{}: ".format(*oldest) + otherwise)
        for name, (oldest, otherwise) in features.items()
    ]


def _what_cutlass_gives(facts: Machine) -> str:
    readers = "lesson 09 and course_kernels.cutlass_ops" if facts.in_checkout else "course_kernels.cutlass_ops"
    if not all(map(facts.packages.get, CUTLASS.values())):
        return f"not here, and optional: {runtime.INSTALL_EXTRA.format('cutlass')} brings what {readers} read"
    capability = facts.gpus[0].capability if facts.mode == "gpu" else None
    runs = {9: "they run here, as grouped_mm's kernel for Hopper does", 10: "NVIDIA's run here"}
    how = runs.get(capability[0] if capability else 0, "to run, they want Hopper or Blackwell")
    if facts.kept:
        how += f" ({len(facts.kept)} compiled so far, in {sum(facts.kept):.0f} s together, and kept)"
    return f"{readers} find operators and compile them; {how}"


def _tried(trial: Trial | None) -> str:
    """Appended to a claim that a trial, where there was one, has proved."""
    return "" if trial is None else f" (tried: right, {trial.seconds:.1f} s)"


# ---- report


def report(facts: Machine, color: bool = False) -> str:
    """What a learner needs to know, as a page of text, at most 100 characters wide."""
    short = [(name, text) for name, text in fact_rows(facts) if name in ("Python", "torch", "Triton", "GPU", "")]
    title = "The lessons" if facts.in_checkout else "What runs how"
    return _page(facts, [("This machine", short), (title, lessons(facts))], color, for_tests=False)


def full_report(facts: Machine, color: bool = False) -> str:
    """The facts, the plan and the problems as a page of text, at most 100 characters wide."""
    return _page(facts, [("This machine", fact_rows(facts)), ("What runs how", plan(facts))], color, for_tests=True)


def lessons(facts: Machine) -> list[tuple[str, str]]:
    """How the lessons run on a machine, and what single ones still need."""
    hardware = [row for row in _hardware_features(facts) if row[1] not in ("in the interpreter", "in hardware")]
    speeds = dict(plan(facts))["live timings"]
    needs = []
    if facts.in_checkout:
        missing = {
            "lesson 09": ("CUTLASS", "cutlass", CUTLASS.values()), "lesson 13": ("Helion", "helion", ("helion",)),
        }  # fmt: skip
        needs = [
            (lesson, f'needs {what}: pip install ".[{extra}]"')
            for lesson, (what, extra, names) in missing.items()
            if not all(map(facts.packages.get, names))
        ]
    return [
        ("kernels", _how_kernels_run(facts)), *_without_kernels(facts), *hardware, ("speeds", speeds),
        ("compiling", _how_kernels_compile(facts)), *needs,
        *[row for row in facts.answers if row[0] == isolation_report.WALLS],
    ]  # fmt: skip


def _page(facts: Machine, parts: list[tuple[str, list]], color: bool, for_tests: bool) -> str:
    def paint(text: str, style: str) -> str:
        return terminal.with_style(text, style) if color else text

    def rows(pairs: list[tuple[str, str]]) -> list[str]:
        indent = " " * 16
        return [textwrap.fill(value, _WIDTH, initial_indent=f"  {name:<14}", subsequent_indent=indent)
                for name, value in pairs]  # fmt: skip

    found = [problem for problem in problems(facts) if for_tests or not problem.for_tests]
    stopped = any(problem.stops for problem in found)
    lines = []
    for title, pairs in parts:
        lines += [paint(title, "bold"), *rows(pairs), ""]
    if found:
        lines += [paint("To repair" if stopped else "Worth knowing", "bold")]
    for problem in found:
        mark = paint("✗", "red") if problem.stops else paint("!", "yellow")
        lines.append(f"  {mark} " + textwrap.fill(problem.what, _WIDTH - 4, subsequent_indent="    "))
        lines.append(textwrap.fill(f"→ {problem.remedy}", _WIDTH, initial_indent="    ", subsequent_indent="      "))
    lines += [""] if found else []
    return "\n".join([*lines, paint(_verdict(facts, found), "bold red" if stopped else "bold green")])


def _verdict(facts: Machine, found: list[Problem]) -> str:
    stopping = [problem for problem in found if problem.stops]
    how = ", by torch alone" if _interpreter_lacks_numpy(facts) else ""
    library = f"The library runs here{how}: from course_kernels import group_gemm."
    library_runs = all(problem.notebooks_only for problem in stopping)
    if not facts.in_checkout:
        if not library_runs:
            return "The library does not run here yet: see 'To repair'."
        needs = "" if facts.packages["jupyterlab"] else "JupyterLab and "
        return f"{library}\nThe course's notebooks need {needs}a clone of its repository."
    if not stopping:
        return "The course runs here. Start with notebooks/00_start_here.ipynb: make lab opens it."
    return "The course does not run here yet: see 'To repair'." + (f"\n{library}" if library_runs else "")


def fact_rows(facts: Machine) -> list[tuple[str, str]]:
    """The first part of the page: each fact's name and text."""

    def version(name: str) -> str:
        return facts.packages[name] or "missing"

    cutlass = ", ".join(f"{short} {version(name)}" for short, name in CUTLASS.items())
    memory = "" if facts.memory_gib is None else f", {facts.memory_gib:.0f} GiB"
    cores = f"{facts.cores} core{'s' if facts.cores != 1 else ''}"
    gpus = ["none that torch can use"]
    if facts.gpus:
        names = ["" if g.capability is None else "capability {}.{}, ".format(*g.capability) for g in facts.gpus]
        gpus = [f"{g.name}: {name}{g.sms} SMs, {g.memory_gib:.0f} GiB" for g, name in zip(facts.gpus, names)]
    return [
        ("Python", ".".join(map(str, facts.python)) + f", {' '.join(facts.system)}, {cores}{memory}"),
        ("torch", f"{version('torch')}, built for {facts.torch_built_for}"),
        ("Triton", version("triton")),
        ("NumPy", version("numpy")),
        ("CUTLASS", cutlass if any(map(facts.packages.get, CUTLASS.values())) else "not installed"),
        ("Helion", facts.packages.get("helion") or "not installed"),
        *[("GPU" if i == 0 else "", gpu) for i, gpu in enumerate(gpus)],
        ("NVIDIA driver", facts.driver or "none"),
        *[(name, version(name)) for name in ("jupyterlab", "ipykernel", "matplotlib", *FOR_TESTS)],
    ]


if __name__ == "__main__":
    sys.exit(app.main(["doctor", *sys.argv[1:]]))
