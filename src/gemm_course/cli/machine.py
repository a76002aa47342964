"""The facts about a machine that decide how the course runs on it; `doctor` judges them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch

from course_kernels import runtime
from course_kernels.bench.interface import one_line
from course_kernels.testing import selftest

NEEDED = ("jupyterlab", "ipykernel", "matplotlib", "numpy")  # to open and run a notebook
CUTLASS = ("nvidia-cutlass-operators", "nvidia-cutlass-dsl", "apache-tvm-ffi")


@dataclasses.dataclass(frozen=True)
class Trial:
    """The error of an attempt to run something, on one line (None if it worked), and its duration."""

    error: str | None
    seconds: float


@dataclasses.dataclass(frozen=True)
class Machine:
    """The hardware and software of a machine, as far as the course depends on them."""

    system: tuple[str, str]  # ("Linux", "x86_64")
    packages: dict[str, str | None]  # name → version, or None
    torch_built_for: str  # "CUDA 13.0", "ROCm 7.0" or "CPU"
    triton_wanted: str | None  # by this build of torch
    nvidia_driver: bool
    gpus: tuple[str, ...]  # that torch sees
    capability: tuple[int, int] | None  # compute capability of the first GPU, unless AMD made it
    mode: str  # of `runtime.mode()`
    cannot_launch: str | None  # why no kernel can run in this process
    in_checkout: bool  # of the course, rather than the library installed alone
    kernel: Trial | None = None  # run and compared
    compiler: Trial | None = None  # compiled for an H200
    isolation: tuple[str, ...] = ()  # of answers to exercises: sentences of `isolation_report`


def examine(trials: bool = True) -> Machine:
    """The facts about this machine and this process; with trials of a kernel and the compiler, about three seconds."""
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    installed = {name: _version(name) for name in ("triton", *NEEDED, *CUTLASS, "helion")}
    cannot_launch = None
    try:
        runtime.check_can_launch(runtime.device())
    except (RuntimeError, ImportError) as error:
        cannot_launch = str(error)
    tried = trials and installed["triton"] is not None
    return Machine(
        system=(platform.system(), platform.machine()),
        packages={"Python": platform.python_version(), "torch": torch.__version__, **installed},
        torch_built_for=f"ROCm {torch.version.hip}" if torch.version.hip else built_for,
        triton_wanted=_triton_wanted(),
        nvidia_driver=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
        gpus=tuple(f"{g.name}, {g.multi_processor_count} SMs, {g.total_memory / 2**30:.0f} GiB" for g in gpus),
        capability=(gpus[0].major, gpus[0].minor) if gpus and not torch.version.hip else None,
        mode=runtime.mode(),
        cannot_launch=cannot_launch,
        in_checkout=(Path(__file__).resolve().parents[3] / "benchmarks").is_dir(),
        kernel=attempt(selftest.run_a_kernel) if tried and not cannot_launch else None,
        compiler=attempt(selftest.compile_a_kernel) if tried else None,
    )


def attempt(action: Callable[[], object]) -> Trial:
    """Run something that may fail in any way, and time it."""
    started, error = time.perf_counter(), None
    try:
        action()
    except Exception as caught:  # a broken installation may raise anything
        error = one_line(caught)
    return Trial(error, time.perf_counter() - started)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _triton_wanted() -> str | None:
    requirements = importlib.metadata.requires("torch") or [] if _version("torch") else []
    found = (re.match(r"triton\s*==\s*([\d.]+)", each) for each in requirements)
    return next((match[1] for match in found if match), None)
