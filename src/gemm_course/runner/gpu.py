"""What the processes that run answers do on a GPU beside that: before the first fork, before an answer, and as a trial.

A process that has started CUDA cannot hand it on to a copy of itself. So the zygote prepares what needs no CUDA, and
each of its children starts CUDA for itself, confined already. An answer is loaded after that: where CUDA does not
start, it is not the answer's fault, and the judge is told so.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time

import torch

_CONTROL, _MEMORY = "/dev/nvidiactl", "/dev/nvidia-uvm"
_START_S = 25.0  # the first start since the machine's; who asks this process for a fork waits `zygote.ANSWER_S`


def prepare() -> None:
    """In the process that forks: build what is the same for every answer, and start nothing of CUDA's."""
    with contextlib.suppress(Exception):  # a child will try it again, and say what is wrong
        _build_driver()
    if os.path.exists(_CONTROL) and not os.path.exists(_MEMORY):
        # Until the first program since the machine was started has used CUDA. From inside the sandbox it cannot appear.
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                start()
            os._exit(0)
        stop = time.monotonic() + _START_S
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > stop:  # without waiting for its end: what hangs in a driver may take no signal
                os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.02)


def _build_driver() -> None:
    """Triton's own part of its driver, which it has a C compiler make once for each user.

    Left to itself it would be made in each child's folder, and Triton would ask torch whether CUDA is there, which
    starts CUDA.
    """
    if torch.version.hip is None:
        from triton.backends.nvidia.driver import CudaDriver
        from triton.runtime import driver

        driver.set_active(CudaDriver())


def start() -> None:
    """Start CUDA in this process, and use it once.

    Raises:
        Exception: it does not start here.
    """
    runtime = importlib.import_module("course_kernels.runtime")
    torch.zeros(1, device=runtime.device()).cpu()


def try_kernel() -> None:
    """Compile one of the library's kernels, run it and compare.

    Raises:
        Exception: that does not work here.
    """
    importlib.import_module("course_kernels.testing.selftest").run_a_kernel()
