"""What confines the processes that run answers here, and whether a GPU works from inside: for `course doctor`.

A GPU's driver wants more of the kernel than a computation does, and what it wants changes from one driver to the next.
So a kernel of the library's is run where answers run, confined like one. Where that fails, the same is tried with one
part of the confinement left out at a time: the one that is in the way is named.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable

from gemm_course.isolation import bubblewrap, landlock, seccomp
from gemm_course.judging.request import Outcome

GPU_MB = 8192  # of main memory, beyond what CUDA has taken when it has started
WALLS = "walls"  # the row that a learner sees, too
_TRIAL_S = 30.0
_NAMES = {
    landlock.FILES: "Landlock's rules about files",
    landlock.CALLS: "the filter of system calls",
    landlock.LIMITS: "the limits on memory, time and files' sizes",
}


def one_line(outcome: Outcome) -> str:
    """Why a process gave no result, on one line."""
    error = next((message.error for message in outcome.messages if message.error), None)
    text = outcome.setup_error or outcome.not_started
    if error is not None:
        text = "it did not end" if error.kind == "endless" else f"{error.type}: {error.text}"
    if not text and outcome.timed_out:
        text = "it did not end"
    text = text or outcome.printed.strip()[-300:] or f"the process ended with status {outcome.status}"
    return " ".join(text.split())[:300]


def try_gpu(ask: Callable[..., Outcome], without: Iterable[str] = ()) -> str:
    """Run a small kernel on the GPU, confined like an answer. Returns what went wrong, on one line, or "".

    `ask` is `Judge.ask`. Of `landlock.LAYERS`, those in `without` are left out.
    """
    with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as folder:
        request = {
            "path": os.path.join(folder, "answer.py"), "scratch": tempfile.mkdtemp(dir=folder), "seconds": _TRIAL_S,
            "memory_mb": GPU_MB, "without": list(without),
        }  # fmt: skip
        outcome = ask("gpu", request, _TRIAL_S)
    return "" if any(message.is_result for message in outcome.messages) else one_line(outcome)


def find_layer(ask: Callable[..., Outcome], problem: str) -> str:
    """Which part of the confinement is in the GPU's way; `problem` is the answer of `try_gpu` with all of them."""
    guilty = [layer for layer in landlock.LAYERS if not try_gpu(ask, [layer])]
    if guilty:
        return f"it runs without {', and without '.join(_NAMES[layer] for layer in guilty)}"
    if not (left := try_gpu(ask, landlock.LAYERS)):
        return "it runs without all of its confinement, not without one part of it alone"
    return "it does not run without its confinement either" + (f": {left}" if left != problem else "")


def rows(ask: Callable[..., Outcome] | None = None, gpu: bool = False) -> list[tuple[str, str]]:
    """What confines answers here, as names and sentences; with `Judge.ask`, also whether they run on the GPU.

    `gpu`: whether kernels run on one.
    """
    version = landlock.landlock_version()
    files = f"closed to them (Landlock {version})" if version else "open to them, as this kernel has no Landlock"
    others = "closed (seccomp)" if seccomp.supported() else "open, as no calls of this kernel can be filtered"
    kept = f"your files are {files}, other processes and the network {others}"
    found = [("answers", f"to exercises run apart, with limits on memory and time; {kept}"), (WALLS, _walls(gpu))]
    if ask is not None:
        found.append(("on the GPU", _on_gpu(ask)))
    return found


def _walls(gpu: bool) -> str:
    """Which walls stand around answers to exercises, and why the others do not."""
    version = landlock.landlock_version()
    why_not = {
        f"Landlock {version}" if version else "Landlock": "" if version else "this kernel has none",
        "seccomp": "" if seccomp.supported() else "calls of this kernel cannot be filtered",
        "Bubblewrap": _why_no_bubblewrap(gpu),
    }
    standing = [name for name, why in why_not.items() if not why]
    text = " and ".join(filter(None, [", ".join(standing[:-1]), *standing[-1:]])) or "none"
    return "; ".join([f"answers run behind {text}", *(f"no {name}: {why}" for name, why in why_not.items() if why)])


def _why_no_bubblewrap(gpu: bool) -> str:
    if gpu:
        return "not used with a GPU"
    if shutil.which("bwrap") is None:
        return "not installed"
    return "" if bubblewrap.works() else "this system lets it make no namespaces"


def _on_gpu(ask: Callable[..., Outcome]) -> str:
    started = time.perf_counter()
    problem = try_gpu(ask)
    if not problem:
        return f"answers run, too (tried with a kernel: right, {time.perf_counter() - started:.1f} s)"
    where = find_layer(ask, problem)
    return f"answers do not run; the interpreter's word counts alone. A kernel confined like them: {problem}; {where}"
