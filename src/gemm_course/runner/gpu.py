"""Steps on a GPU before an answer runs: before the first fork, at the start of each process, and as a trial.

A process that has started CUDA cannot hand it on to a fork. So the template prepares what needs no CUDA, and each of
its children starts CUDA itself, after it is confined. The answer is loaded after that: if CUDA does not start, it is
not the answer's fault, and the judge hears of it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time

import torch
import triton
import triton.language as tl

_CONTROL, _MEMORY = "/dev/nvidiactl", "/dev/nvidia-uvm"
_START_S = 25.0  # the first start since the machine's takes long; the judge waits `fork_server.REPLY_S` for a fork


@triton.jit
def trial_kernel(a_ptr, b_ptr, c_ptr, BLOCK: tl.constexpr):
    """C = 2 A + B, for matrices of one block."""
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(c_ptr + at, 2 * tl.load(a_ptr + at) + tl.load(b_ptr + at))


def prepare() -> None:
    """In the process that forks: build what every answer needs, and do not start CUDA."""
    with contextlib.suppress(Exception):  # a child tries it again, and reports the error
        _build_driver()
    if os.path.exists(_CONTROL) and not os.path.exists(_MEMORY):
        # The first program that uses CUDA after the machine's start makes this device. A confined one cannot.
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                start()
            os._exit(0)
        stop = time.monotonic() + _START_S
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if (
                time.monotonic() > stop
            ):  # and do not wait for its end: a process that hangs in a driver may take no signal
                os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.02)


def _build_driver() -> None:
    """Build Triton's part of its driver, which a C compiler makes once for each user.

    Otherwise each child would build it in its own folder, and Triton would ask torch for CUDA, which starts CUDA.
    """
    if torch.version.hip is None:
        from triton.backends.nvidia.driver import CudaDriver
        from triton.runtime import driver

        driver.set_active(CudaDriver())


def start() -> None:
    """Start CUDA in this process, and use it once. Raises what keeps it from that."""
    runtime = importlib.import_module("course_kernels.runtime")
    torch.zeros(1, device=runtime.device()).cpu()


def try_kernel() -> None:
    """Compile a small kernel, run it and compare. Raises what is wrong."""
    device = importlib.import_module("course_kernels.runtime").device()
    a, b = (torch.arange(start, start + 256.0).view(16, 16) for start in (0, 7))
    c = torch.zeros(16, 16, device=device)
    trial_kernel[(1,)](a.to(device), b.to(device), c, 16)
    if not torch.equal(c.cpu(), 2 * a + b):
        raise ArithmeticError("a small kernel has a wrong result")
