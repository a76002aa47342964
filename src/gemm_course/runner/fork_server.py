"""Processes that do nothing but fork, so that a process that runs an answer starts in milliseconds.

The fork server imports torch, which takes a second, and forks one template for each mode, and for each set of libraries
that an exercise uses beside. A template imports the rest and forks the processes that run answers. Neither runs a
learner's code or computes: a fork of a process with torch's thread pool would hang. There are several templates because
Triton chooses once in a process what it does: in mode "run" its interpreter runs the kernels, in mode "compile" they
are compiled, and in mode "gpu" they run on a GPU.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path

MODES = ("run", "compile", "gpu")
MAX_THREADS = 1024  # of a check's processes together; a compiler may start one for each core
REPLY_S = 60.0  # a fork takes milliseconds, but the first one waits for the imports
# Beginnings of the environment variables that are passed on. A learner's code can print them, so tokens are left out.
_KEPT = (
    "PATH", "HOME", "TMP", "LANG", "LC_", "LD_", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON", "TRITON_", "TORCH_",
    "PYTORCH_", "CUDA_", "NVIDIA_", "CUTE_", "HELION_", "OMP_", "MKL_",
)  # fmt: skip
_USES = ("threads", "memory", "nameless")
_KEPT_TOO = ("CC", "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH")  # for the C compiler that Triton calls


class ForkServer:
    """The judge's side of the fork server. It starts at once, in the background."""

    def __init__(self, walls: Sequence[str] = ()):
        """`walls` stand in front of the command that starts it, as `bubblewrap.command` gives them."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {name for name in os.environ if name.startswith(_KEPT) or name in _KEPT_TOO}
        environment = {name: os.environ[name] for name in kept}
        environment.update(PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        with theirs:
            self._process = subprocess.Popen(
                [*walls, sys.executable, __file__, str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C interrupts only the process in front
            )

    @property
    def alive(self) -> bool:
        """True if it can still start templates."""
        return self._process.poll() is None

    def start_template(self, mode: str, libraries: Sequence[str], control: socket.socket) -> None:
        """Start a template, which gets its end of the connection. Raises OSError if the fork server has died."""
        socket.send_fds(self._socket, [" ".join((mode, *libraries)).encode()], [control.fileno()])

    def last_words(self) -> str:
        """The last line that it, or a template of it, has printed on stderr; empty if there is none."""
        try:
            self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - 4096, 0))
            lines = self._errors.read().decode(errors="replace").split("\n")
        except ValueError:  # closed meanwhile
            return ""
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """End it and its templates."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()


class Template:
    """The judge's side of a template, which imports ``libraries``, too, as far as they are installed. It starts at
    once, in the background, and has one child at a time."""

    def __init__(self, server: ForkServer, mode: str, libraries: Sequence[str] = ()):
        self._server = server
        self.alive = True  # as far as is known
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(REPLY_S)
        with theirs:
            server.start_template(mode, libraries, theirs)

    def _request(self, command: bytes, fds: Sequence[int] = ()) -> dict | None:
        """Its reply; None where it has died."""
        reply = b""
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [command], fds)
            reply = self._socket.recv(256)
        self.alive = bool(reply)
        return json.loads(reply) if reply else None

    def fork(self, fds: list[int]) -> int:
        """Start a child, which leads a process group of its own. Returns its process id, as the template sees it.

        It gets descriptors in the order in which `worker.main` wants them.
        """
        reply = self._request(b"fork", fds)
        if reply is None:
            raise RuntimeError(f"the process that starts checks has died. {self._server.last_words()}".strip())
        return reply["pid"]

    def used(self) -> dict[str, int]:
        """The current usage of the child and its children: `_used`; nothing if the template has died."""
        return self._request(b"used") or dict.fromkeys(_USES, 0)

    def finish(self) -> int:
        """Kill the rest of the child and its children. Returns its exit status, as `subprocess` gives it: negative
        for a signal; `-SIGKILL` if it was still running.
        """
        reply = self._request(b"reap")
        return reply["status"] if reply else -signal.SIGKILL

    def close(self) -> None:
        """Have it end itself, as soon as it has nothing to do."""
        self._socket.close()


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # some kernels have no such file
        return []


def _used(child: int) -> dict[str, int]:
    """Threads of the child and of all that it started, and bytes: the memory of programs that it started, for each of
    which its limit holds anew, and files without a name, which no folder shows. Beyond `MAX_THREADS` it stops.
    """
    used, children = dict.fromkeys(_USES, 0), _children()
    while children and used["threads"] <= MAX_THREADS:
        process = Path(f"/proc/{children.pop()}")
        try:
            status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            used["threads"] += int(status["Threads"])
            if process.name != str(child):
                used["memory"] += sum(int(status[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))
            used["nameless"] += _nameless(process)
            for thread in itertools.islice((process / "task").iterdir(), MAX_THREADS):
                children += map(int, (thread / "children").read_text().split())
        except (OSError, KeyError, ValueError):  # it has ended meanwhile, or is about to
            continue
    return used


def _nameless(process: Path) -> int:
    """Bytes of the files that a process has open, or in its memory, and that have no name any more."""
    total = 0
    for file in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            status = file.stat()
            total += status.st_blocks * 512 if stat.S_ISREG(status.st_mode) and not status.st_nlink else 0
    for line in (process / "maps").read_text().splitlines():
        place, _, name = line.partition(f" {tempfile.gettempdir()}/")
        if name.endswith(" (deleted)"):
            start, end = (int(each, 16) for each in place.split()[0].split("-"))
            total += end - start
    return total


def _reap(pid: int) -> int:
    """Kill the child and every process that it left running: orphans become children of this process."""
    for end in (os.killpg, os.kill):  # it may not lead its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for _ in range(1000):  # a child may start others while we look
        if not (children := _children()):
            break
        for orphan in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return status


def serve_forks(control: socket.socket, mode: str, libraries: Sequence[str]) -> None:
    """A template's life: fork on request until the other end is closed."""
    # Not before the mode is set: Triton looks at it when it is imported.
    from gemm_course.isolation import landlock
    from gemm_course.runner import worker

    landlock.become_subreaper()
    worker.preload(mode, libraries)
    gc.freeze()
    gc.enable()
    pid = 0
    while True:
        data, fds, _, _ = socket.recv_fds(control, 64, 8)
        if not data:
            if pid:  # the judge was killed; a child can choose not to die with this process
                _reap(pid)
            return
        if data == b"fork":
            pid = os.fork()
            if pid == 0:
                control.close()
                worker.main(mode, fds)  # does not return
            for fd in fds:
                os.close(fd)
            control.send(json.dumps({"pid": pid}).encode())
        elif data == b"used":
            control.send(json.dumps(_used(pid)).encode())
        else:
            control.send(json.dumps({"status": _reap(pid)}).encode())
            pid = 0


def _set_gpu(found: bool) -> None:
    """Set whether the library's runtime finds a GPU. The judge has already asked torch.

    Without NVML torch asks CUDA, and a process that has started CUDA cannot hand it on to a fork.
    """
    cuda = importlib.import_module("torch.cuda")
    asked, cuda.device_count = cuda.device_count, lambda: int(found)
    importlib.import_module("course_kernels.runtime").has_gpu()
    cuda.device_count = asked


def use_bare_packages() -> None:
    """Import nothing with our packages themselves: with `course_kernels` comes the library, which is an oracle."""
    for name in ("course_kernels", "course_kernels.testing", "gemm_course"):
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(Path(sys.path[0], *name.split(".")))]
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, package)


def serve_templates(control: socket.socket) -> None:
    """The fork server's life: fork templates on request until the other end is closed."""
    gc.disable()  # there is no garbage to collect, and looking for it takes 0.2 s
    importlib.import_module("torch")  # and nothing of the course: its runtime looks at TRITON_INTERPRET once
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(control, 256, 1)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            mode, *libraries = data.decode().split()
            os.environ["TRITON_INTERPRET"] = str(int(mode == "run"))
            if mode == "compile":
                os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
            if mode != "run":
                _set_gpu(mode == "gpu")
            serve_forks(socket.socket(fileno=fds[0]), mode, libraries)
            return
        os.close(fds[0])


if __name__ == "__main__":
    # Started by path, so that the caller's working directory cannot shadow a module; that puts this folder first.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    use_bare_packages()
    if sys.argv[1].isdigit():
        serve_templates(socket.socket(fileno=int(sys.argv[1])))
    else:  # a process that does something else without the library, and without waiting for torch
        importlib.import_module(sys.argv[1]).main()
