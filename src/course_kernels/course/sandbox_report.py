"""What confines the processes that run answers here, and whether a GPU works from inside: for `course doctor`.

A GPU's driver wants more of the kernel than a computation does, and what it wants changes from one driver to the next.
So a kernel of the library's is run where answers run, confined like one. Where that fails, the same is tried with one
part of the confinement left out at a time: the one that is in the way is named.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable

from course_kernels import runtime
from course_kernels.course import sandbox, syscalls
from course_kernels.course.child import Outcome

GPU_MB = 8192  # of main memory, beyond what CUDA has taken when it has started
_TRIAL_S = 60.0
_NAMES = {
    sandbox.FILES: "Landlock's rules about files",
    sandbox.CALLS: "the filter of system calls",
    sandbox.LIMITS: "the limits on memory, time and files' sizes",
}


def one_line(outcome: Outcome) -> str:
    """Why a process gave no result, on one line.

    Args:
        outcome: of the process.
    """
    error = next((message["error"] for message in outcome.messages if message.get("error")), None)
    text = outcome.unfit or outcome.died
    if error is not None:
        text = "it did not end" if error["kind"] == "endless" else f"{error['type']}: {error['text']}"
    if not text and outcome.late:
        text = "it did not end"
    text = text or outcome.printed.strip()[-300:] or f"the process ended with status {outcome.status}"
    return " ".join(text.split())[:300]


def try_gpu(ask: Callable[..., Outcome], without: Iterable[str] = ()) -> str:
    """Run a small kernel on the GPU, confined like an answer.

    Args:
        ask: takes a mode of `zygote.MODES`, a request and a limit in seconds, and returns the process's outcome.
        without: those of `sandbox.LAYERS` to leave out.

    Returns:
        What went wrong, on one line; empty where the result is right.
    """
    with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as folder:
        request = {
            "path": os.path.join(folder, "answer.py"), "scratch": tempfile.mkdtemp(dir=folder), "seconds": _TRIAL_S,
            "memory_mb": GPU_MB, "without": list(without),
        }  # fmt: skip
        outcome = ask("gpu", request, _TRIAL_S)
    return "" if any("value" in message for message in outcome.messages) else one_line(outcome)


def find_layer(ask: Callable[..., Outcome]) -> str:
    """Which part of the confinement is in the GPU's way.

    Args:
        ask: as for `try_gpu`.

    Returns:
        A sentence.
    """
    guilty = [layer for layer in sandbox.LAYERS if not try_gpu(ask, [layer])]
    if guilty:
        return f"it runs without {', and without '.join(_NAMES[layer] for layer in guilty)}"
    if not (left := try_gpu(ask, sandbox.LAYERS)):
        return "it runs without all of its confinement, not without one part of it alone"
    return f"not without any of its confinement either: {left}"


def rows(trial: bool = True) -> list[tuple[str, str]]:
    """What confines answers on this machine, and whether they run on its GPU.

    Args:
        trial: whether to try it, a few seconds; only where there is a GPU.

    Returns:
        Pairs of a name and a sentence, as `doctor.plan` has them.
    """
    version = sandbox.landlock_version()
    files = f"from files (Landlock {version})" if version else "not from files, as this kernel lacks Landlock"
    calls = "from other processes and the network (seccomp)"
    if not syscalls.supported():
        calls = "not from other processes and the network, as this kernel filters no system calls"
    found = [("answers", f"in processes of their own, kept from memory and time beyond a limit, {files}, {calls}")]
    if runtime.MODE == "gpu" and trial:
        found.append(("answers' GPU", _on_gpu()))
    return found


def _on_gpu() -> str:
    from course_kernels.course.judge import Judge

    with Judge() as judge:
        started = time.perf_counter()
        problem = try_gpu(judge._ask)
        if not problem:
            return f"a kernel runs on it from inside (tried: right, {time.perf_counter() - started:.1f} s)"
        where = find_layer(judge._ask)
    return f"no kernel runs on it from inside: {problem}; {where}. What the interpreter says counts alone"
