"""The facts about a machine that decide how the course runs on it; `doctor` judges them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from course_kernels import runtime
from course_kernels.engine.hopper import compiled_cache as cute_cache
from course_kernels.testing import selftest

NEEDED = ("jupyterlab", "ipykernel", "matplotlib", "numpy")  # to open and run a notebook
FOR_TESTS = ("nbval", "pytest")
CUTLASS = {"operators": "nvidia-cutlass-operators", "DSL": "nvidia-cutlass-dsl", "TVM FFI": "apache-tvm-ffi"}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU that torch sees."""

    name: str
    capability: tuple[int, int] | None  # compute capability; None for an AMD GPU
    sms: int
    memory_gib: float


@dataclasses.dataclass(frozen=True)
class Trial:
    """What an attempt to run something took, and what went wrong, on one line; None where it worked."""

    error: str | None
    seconds: float


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a machine has, as far as the course cares."""

    python: tuple[int, int, int]
    system: tuple[str, str]  # ("Linux", "x86_64")
    cores: int  # that this process may use
    memory_gib: float | None
    packages: dict[str, str | None]  # name → version; None where it is not installed
    torch_built_for: str  # "CUDA 13.0", "ROCm 7.0" or "CPU"
    triton_wanted: str | None  # by this build of torch
    driver: str | None  # version of the NVIDIA driver; "present" where only its tool is found
    gpus: tuple[Gpu, ...]
    mode: str  # of `runtime.mode()`
    cannot_launch: str | None  # why no kernel can run in this process
    records: tuple[str, ...] | None  # names of recorded measurements; None outside a checkout
    kernel: Trial | None = None  # a kernel run and compared
    compiler: Trial | None = None  # a kernel compiled for an H200
    answers: tuple[tuple[str, str], ...] = ()  # how answers to exercises run here: `isolation_report.rows`
    kept: tuple[float, ...] = ()  # seconds of compiling for each kernel in CuTe DSL that is kept for later processes

    @property
    def in_checkout(self) -> bool:
        """Whether this is a checkout of the course, not the library installed alone."""
        return self.records is not None


def examine(trials: bool = True) -> Machine:
    """The facts about this machine and this process; with trials of a kernel and the compiler, about three seconds."""
    names = ("torch", "triton", *NEEDED, *FOR_TESTS, *CUTLASS.values(), "helion")
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    if torch.version.hip:
        built_for = f"ROCm {torch.version.hip}"
    cannot_launch = _cannot_launch()
    machine = Machine(
        python=tuple(sys.version_info[:3]),
        system=(platform.system(), platform.machine()),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=_memory_gib(),
        packages={name: torch.__version__ if name == "torch" else _version(name) for name in names},
        torch_built_for=built_for,
        triton_wanted=_triton_wanted(),
        driver=_driver(),
        gpus=tuple(_gpu(index) for index in range(torch.cuda.device_count())),
        mode=runtime.mode(),
        cannot_launch=cannot_launch,
        records=_records(),
        kept=tuple(kernel.seconds for kernel in cute_cache.kept()),
    )
    if not trials or machine.packages["triton"] is None:
        return machine
    kernel = None if cannot_launch else attempt(selftest.run_a_kernel)
    return dataclasses.replace(machine, kernel=kernel, compiler=attempt(selftest.compile_a_kernel))


def attempt(action: Callable[[], object]) -> Trial:
    """Run something that may fail in any way, and time it."""
    started, error = time.perf_counter(), None
    try:
        action()
    except Exception as caught:  # whatever a broken installation raises is the finding
        lines = str(caught).strip().splitlines() or [""]
        error = f"{type(caught).__name__}: {lines[0]}"
    return Trial(error, time.perf_counter() - started)


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
