"""A process that has imported torch and Triton and does nothing but fork: a copy of it starts in milliseconds.

It never runs a learner's code and never computes (a forked copy of a process with torch's thread pool would hang). One
runs kernels in Triton's interpreter, or on a GPU; another, with TRITON_INTERPRET=0, compiles.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

MODES = ("run", "compile")
# Beginnings of what is kept of the environment: a learner's code can print it, and tokens and passwords are kept there.
_KEPT = (
    "PATH", "HOME", "TMP", "LANG", "LC_", "LD_", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON", "TRITON_", "TORCH_",
    "PYTORCH_", "CUDA_", "NVIDIA_", "CUTE_", "HELION_", "OMP_", "MKL_",
)  # fmt: skip


class Zygote:
    """The parent's side. Starts at once, in the background. One child at a time.

    Args:
        mode: "run" or "compile".
    """

    def __init__(self, mode: str):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name.startswith(_KEPT)}
        environment.update(PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
        if mode == "compile":
            environment.update(TRITON_INTERPRET="0", TRITON_DEFAULT_FP_FUSION="1")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, mode, str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the process in front
            )

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return self.process.poll() is None

    def fork(self, fds: list[int]) -> int:
        """Start a child.

        Args:
            fds: descriptors that the child gets, in the order in which `worker.main` wants them.

        Returns:
            Its process id; it leads a process group of its own.

        Raises:
            RuntimeError: the zygote has died.
        """
        try:
            packed = array.array("i", fds).tobytes()
            self._socket.sendmsg([b"fork"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)])
            answer = self._socket.recv(256)
        except OSError as error:
            raise RuntimeError(f"the process that starts checks has died: {error}") from None
        if not answer:
            raise RuntimeError(f"the process that starts checks has died (exit {self.process.wait()})")
        return json.loads(answer)["pid"]

    def finish(self, pid: int) -> int:
        """Kill what is left of the child and its children.

        Args:
            pid: of the child.

        Returns:
            Its exit status, as `subprocess` gives it: negative for a signal; `-SIGKILL` where it was still running.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        answer = b""
        with contextlib.suppress(OSError):
            self._socket.send(b"reap")
            answer = self._socket.recv(256)
        return json.loads(answer)["status"] if answer else -signal.SIGKILL

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self.process.kill()
        self.process.wait()


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _reap(pid: int) -> int:
    """Wait for the child, then end every process that it left behind: orphans become children of this process."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for _ in range(1000):  # a child may start others while we look
        if not (left := _children()):
            break
        for orphan in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return status


def serve(control: socket.socket, mode: str) -> None:
    """Fork on request until the other end is closed."""
    from course_kernels.course import sandbox, worker

    sandbox.become_subreaper()
    worker.preload(mode)
    pid = 0
    while True:
        data, fds, _, _ = socket.recv_fds(control, 64, 8)
        if not data:
            return
        if data == b"fork":
            pid = os.fork()
            if pid == 0:
                control.close()
                worker.main(mode, fds)  # does not return
            for fd in fds:
                os.close(fd)
            control.send(json.dumps({"pid": pid}).encode())
        else:
            control.send(json.dumps({"status": _reap(pid)}).encode())


if __name__ == "__main__":
    # Started by path, so that the caller's working directory cannot shadow a module; that puts this folder first.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    import course_kernels.course.zygote as this_module

    this_module.serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[1])
