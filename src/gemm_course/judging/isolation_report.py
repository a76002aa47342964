"""The isolation that answers run in on this machine, and whether a GPU works inside it: for `course doctor`.

A GPU's driver needs more system calls and files than a computation does, and another driver needs others. So a library
kernel runs where answers run, isolated like one. If it fails, it runs again with one layer left out at a time, and the
layer that blocks it is named.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable

from gemm_course.isolation import bubblewrap, landlock, seccomp
from gemm_course.judging.request import Outcome

GPU_MB = 8192  # of main memory, beyond what CUDA takes when it starts
_TRIAL_S = 30.0
_NAMES = {
    landlock.FILES: "Landlock's rules about files",
    landlock.CALLS: "the filter of system calls",
    landlock.LIMITS: "the limits on memory, time and file sizes",
}
_Ask = Callable[..., Outcome]  # `Judge.ask`


def try_gpu(ask: _Ask, without: Iterable[str] = ()) -> str:
    """Run a kernel on the GPU, isolated like an answer, `without` layers. Returns its problem on one line, or ""."""
    with tempfile.TemporaryDirectory(prefix="course-judge-", ignore_cleanup_errors=True) as folder:
        wanted = {"path": f"{folder}/answer.py", "scratch": tempfile.mkdtemp(dir=folder), "without": list(without)}
        outcome = ask("gpu", {**wanted, "seconds": _TRIAL_S, "memory_mb": GPU_MB}, _TRIAL_S)
    return "" if any(message.is_result for message in outcome.messages) else outcome.reason


def find_layer(ask: _Ask, problem: str) -> str:
    """Name the layer of isolation that blocks the GPU; `problem` is the answer of `try_gpu` with all layers."""
    if blocking := [name for layer, name in _NAMES.items() if not try_gpu(ask, [layer])]:
        return f"it runs without {', and without '.join(blocking)}"
    if not (remaining := try_gpu(ask, landlock.LAYERS)):
        return "it runs without any isolation, but not without one layer alone"
    return "it does not run without isolation either" + (f": {remaining}" if remaining != problem else "")


def walls(gpu: bool) -> str:
    """Name the walls that hold around answers, and the reasons of the others; `gpu`: whether kernels run on one."""
    version = landlock.landlock_version()
    no_bubblewrap = "not installed" if shutil.which("bwrap") is None else "this system allows no namespaces"
    problems = {
        f"Landlock {version} (files)" if version else "Landlock (files)": "" if version else "this kernel has none",
        "seccomp (processes, network)": "" if seccomp.supported() else "this kernel cannot filter system calls",
        "Bubblewrap": "not used with a GPU" if gpu else "" if bubblewrap.works() else no_bubblewrap,
    }
    holding = [name for name, problem in problems.items() if not problem] or ["none"]
    return "; ".join([f"answers run behind {', '.join(holding)}", *(f"no {n}: {p}" for n, p in problems.items() if p)])


def on_gpu(ask: _Ask) -> str:
    """Say whether answers run on the GPU, by running a kernel isolated like one."""
    if not (problem := try_gpu(ask)):
        return "answers run on the GPU, too (tried: right)"
    reason = f"{problem}; {find_layer(ask, problem)}"
    return f"answers do not run on the GPU; the interpreter judges them alone. A kernel isolated like them: {reason}"
