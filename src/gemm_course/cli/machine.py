"""The facts about a machine that decide how the course runs on it; ``doctor`` judges and tells them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import time
from pathlib import Path

import torch

from course_kernels import runtime
from course_kernels.packed.backends import cute_cache
from course_kernels.testing import selftest

NEEDED = ("jupyterlab", "ipykernel", "matplotlib", "numpy")  # to open and run a notebook
FOR_TESTS = ("nbval", "pytest")
CUTLASS = {"operators": "nvidia-cutlass-operators", "DSL": "nvidia-cutlass-dsl", "TVM FFI": "apache-tvm-ffi"}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU that torch sees.

    Attributes:
        name: as its driver calls it.
        capability: compute capability, (major, minor); None for an AMD GPU.
        sms: number of streaming multiprocessors.
        memory_gib: memory in GiB.
    """

    name: str
    capability: tuple[int, int] | None
    sms: int
    memory_gib: float


@dataclasses.dataclass(frozen=True)
class Trial:
    """One thing that was tried.

    Attributes:
        error: what went wrong, on one line; None where it worked.
        seconds: how long it took.
    """

    error: str | None
    seconds: float


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a machine has, as far as the course cares.

    Attributes:
        python: version of the running Python.
        system: operating system and processor, such as ("Linux", "x86_64").
        cores, memory_gib: processor cores that this process may use, and main memory in GiB (None: not known).
        packages: version of each package by name; None where it is not installed.
        torch_built_for: "CUDA 13.0", "ROCm 7.0" or "CPU".
        triton_wanted: version of Triton that this build of torch asks for; None where it asks for none.
        driver: version of the NVIDIA driver, "present" where only its tool is found; None without one.
        gpus: the GPUs that torch sees.
        mode: how kernels run, ``runtime.mode()``.
        cannot_launch: why no kernel can run in this process; None where one can.
        records: names of the recorded measurements found in the checkout; None outside a checkout.
        kernel, compiler: a kernel run and compared, a kernel compiled for an H200; None where not tried.
        answers: how the course's exercises run answers here, as `course.sandbox_report` says it.
        kept: seconds that compiling took of each kernel in CuTe DSL that is kept for later processes.
    """

    python: tuple[int, int, int]
    system: tuple[str, str]
    cores: int
    memory_gib: float | None
    packages: dict[str, str | None]
    torch_built_for: str
    triton_wanted: str | None
    driver: str | None
    gpus: tuple[Gpu, ...]
    mode: str
    cannot_launch: str | None
    records: tuple[str, ...] | None
    kernel: Trial | None = None
    compiler: Trial | None = None
    answers: tuple[tuple[str, str], ...] = ()
    kept: tuple[float, ...] = ()


def examine(trials: bool = True) -> Machine:
    """Collect the facts about this machine and this process.

    Args:
        trials: also run one small kernel and compile one for an H200, about three seconds together.

    Returns:
        The facts.
    """
    names = ("torch", "triton", *NEEDED, *FOR_TESTS, *CUTLASS.values())
    cannot_launch = _cannot_launch()
    machine = Machine(
        python=tuple(sys.version_info[:3]),
        system=(platform.system(), platform.machine()),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=_memory_gib(),
        packages={name: torch.__version__ if name == "torch" else _version(name) for name in names},
        torch_built_for=_torch_built_for(),
        triton_wanted=_triton_wanted(),
        driver=_driver(),
        gpus=tuple(_gpu(index) for index in range(torch.cuda.device_count())),
        mode=runtime.mode(),
        cannot_launch=cannot_launch,
        records=_records(),
        kept=tuple(kernel.seconds for kernel in cute_cache.kept()),
    )
    if machine.packages["triton"] is None:
        return machine
    if trials:
        kernel = None if cannot_launch else _tried(selftest.run_a_kernel)
        machine = dataclasses.replace(machine, kernel=kernel, compiler=_tried(selftest.compile_a_kernel))
    # Where no kernel runs at all, there is nothing to say of one that runs confined.
    return dataclasses.replace(machine, answers=_answers(trials and machine.kernel and machine.kernel.error is None))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory_gib() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return None


def _torch_built_for() -> str:
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"


def _triton_wanted() -> str | None:
    try:
        wanted = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (re.match(r"triton\s*==\s*([\d.]+)", each) for each in wanted)
    return next((match[1] for match in found if match), None)


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "present" if shutil.which("nvidia-smi") else None
    match = re.search(r"\b\d{3,}(\.\d+)+\b", text)
    return match[0] if match else "present"


def _gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    capability = None if torch.version.hip else (properties.major, properties.minor)
    return Gpu(properties.name, capability, properties.multi_processor_count, properties.total_memory / 2**30)


def _cannot_launch() -> str | None:
    try:
        runtime.check_can_launch(runtime.device())
    except (RuntimeError, ImportError) as error:
        return str(error)
    return None


def _records() -> tuple[str, ...] | None:
    root = Path(__file__).resolve().parents[3]
    if not (root / "benchmarks").is_dir():
        return None
    return tuple(sorted(path.stem for path in (root / "benchmarks" / "results").glob("*.json")))


def _answers(trial: bool) -> tuple[tuple[str, str], ...]:
    if platform.system() != "Linux":
        return ()
    from gemm_course.judging import isolation_report as sandbox_report

    return tuple(sandbox_report.rows(bool(trial)))


# ---- trials


def _tried(action) -> Trial:
    started = time.perf_counter()
    error = None
    try:
        action()
    except Exception as caught:  # whatever a broken installation raises is the finding
        lines = str(caught).strip().splitlines() or [""]
        error = f"{type(caught).__name__}: {lines[0]}"
    return Trial(error, time.perf_counter() - started)
