"""Limits a learner's code: memory, time, few files to read, no access to other processes. Linux only.

It writes no file. If an exercise needs a compiler, the process gets a folder of its own to write to.

Limits hold everywhere. The rules about files need Landlock (Linux 5.13), those about other processes and the network a
seccomp filter (see `seccomp`); each is left out if the kernel lacks it.

With a GPU, more is allowed: its devices, and shared memory, which no limit counts and which ends with the process. One
CUDA program needed that. Memory shared between programs, and MPS, are blocked: files in /dev/shm would stay, and from
one of them CUDA takes the path of a library to load into the user's other programs. So answers do not use MPS, and do
not run on a GPU that admits MPS alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import importlib.util
import math
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gemm_course.isolation import seccomp

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH, _VERSION_FLAG = 1, 1
# Access rights by the Landlock version that brought them: everything that changes a file or a folder.
_WRITE = {1: (1 << 1) | sum(1 << bit for bit in range(4, 13)), 2: 1 << 13, 3: 1 << 14}
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER, _TRUNCATE, _DEVICE = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_USE = _READ | _WRITE_FILE | _TRUNCATE
_MAKE_DEVICE_OR_SOCKET = 1 << 6 | 1 << 9 | 1 << 11
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE
_NET = 3  # version 4: bind and connect by TCP
_SCOPE_SIGNAL_AND_SOCKETS = 3  # version 6: nothing outside may be signalled
# Read by Python, torch and Triton while they run. No home: it holds solutions, other people's answers, keys.
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/dev/null",
    "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system",
)  # fmt: skip
# Read in addition by CUDA and by the C compiler that Triton calls.
_GPU = (
    "/opt", "/etc/nvidia", "/dev/zero", "/proc/driver", "/proc/devices", "/proc/filesystems", "/proc/modules",
    "/proc/stat", "/proc/sys", "/proc/version", "/sys",
)  # fmt: skip
_GPU_DEVICES = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dxg")  # the last under WSL
# CUDA names its threads through files here, which it opens with truncation; a refusal makes it fail with error 304.
_OWN_THREADS = "/proc/self/task"
_PACKAGES = ("site-packages", "dist-packages")
_CAPABILITIES = 0x20080522  # version of how they are laid out
_OPEN_ANYTHING = 1 << 1 | 1 << 2  # those about opening files

# Files, pipes and sockets: the kernel keeps some 200 kB of what is sent to each, and no limit counts that.
MAX_OPEN = 512
PATIENCE = 3  # times its processor time that an answer may take on a busy machine

FILES, CALLS, LIMITS = "files", "calls", "limits"
LAYERS = (FILES, CALLS, LIMITS)  # a trial can leave one out, to see which blocks a GPU


def _libc():
    return ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans of this process's children become its own children, so that it can end them."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """This process is killed when the one that forked it ends."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit(memory_mb: int, seconds: float, file_mb: int = 0) -> None:
    """Limit this process and its children: writable memory and seconds of CPU time beyond its present use (a GPU's
    driver takes much, once, when it starts), the size of a file that it writes, and its open files.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    used = int(status["VmData"].split()[0]) << 10
    for kind, value, more in (
        (resource.RLIMIT_DATA, used + (memory_mb << 20), 0),
        # First SIGXCPU, a second later SIGKILL, which cannot be ignored. Half a second is for the worker's own alarm.
        (resource.RLIMIT_CPU, math.ceil(sum(os.times()[:2]) + seconds + 0.5), 1),
        (resource.RLIMIT_FSIZE, file_mb << 20, 0),
        (resource.RLIMIT_NOFILE, MAX_OPEN, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # an administrator's limit may be lower
            resource.setrlimit(kind, (value, value + more))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails instead


_PACKAGE = Path(__file__).resolve().parents[1]


# Our own code knows and computes the results of exercises. An answer's process has imported the parts that it needs.
_HIDDEN = tuple(os.path.realpath(_PACKAGE.with_name(name)) for name in ("course_kernels", "gemm_course"))


def _installed() -> Iterator[str]:
    """The folders of Python and its packages."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix)
    yield from (entry for entry in sys.path if Path(entry).name in _PACKAGES)
    # They may be elsewhere, and read parts of themselves when asked: CuTe DSL the source of its functions.
    for name in ("torch", "triton", "numpy", "cutlass", "tvm_ffi", "nvidia_cutlass_dsl"):
        if origin := _origin(name):
            package = Path(origin).parent
            if package.parent.name in _PACKAGES:
                yield str(package.parent)
            else:  # a folder of any name, which may hold other things: a home, at worst
                yield from (str(package), f"{package}.libs", str(package.parent / "nvidia"))
    yield from filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))


def _origin(name: str) -> str | None:
    """A file of a package that is imported, or that would be."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin:
        return spec and spec.origin
    return next((str(Path(folder, "__init__.py")) for folder in spec.submodule_search_locations or ()), None)


def places() -> list[str]:
    """The places that Python, torch, Triton and our packages need, for walls that hide everything else."""
    return [*_SYSTEM, *_installed(), *_HIDDEN]


@functools.cache
def _readable() -> tuple[tuple[str, int], ...]:
    """(place, right) for each place that an answer's process may read on any machine. They exist while we run."""
    return tuple(rule for place in dict.fromkeys((*_SYSTEM, *_installed())) for rule in _around_hidden(place))


def _around_hidden(place: str) -> Iterator[tuple[str, int]]:
    """Rules to read a place without our code. If our code is inside, there is a rule for each other part."""
    real = os.path.realpath(place)
    inside = [each for each in _HIDDEN if each.startswith(f"{real}/")]
    if not inside:
        if not any(f"{real}/".startswith(f"{each}/") for each in _HIDDEN):
            yield place, _READ
        return
    yield place, _READ_FOLDER
    with contextlib.suppress(OSError):
        for entry in os.scandir(real):
            yield from _around_hidden(entry.path)


def confine(
    readable: Iterable[str] = (),
    writable: str | None = None,
    *,
    programs: bool = False,
    gpu: bool = False,
    without: Iterable[str] = (),
) -> None:
    """Take from this process all that a computation does not need, as far as the kernel can.

    It can then read its own program and no file of the user's, and change no file. It starts no process and has no
    network. It cannot signal, trace, limit, place or connect to a process outside.

    Args:
        readable: folders that it may read in addition.
        writable: a folder in which it may do everything, but make devices and sockets.
        programs: whether it may start other programs, as a compiler does.
        gpu: whether it needs a GPU. Call it before CUDA starts: the rules hold for threads started after it.
        without: the `LAYERS` to leave out.
    """
    if FILES not in without:
        _landlock(readable, writable, gpu)
    if CALLS not in without:
        _renounce()
        if not seccomp.forbid(processes=programs, driver=gpu):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NPROC, (4096, 4096))


def _renounce() -> None:
    """Drop root's rights except opening files: the course may be installed as another user."""
    libc, header, rights = _libc(), struct.pack("<Ii", _CAPABILITIES, 0), ctypes.create_string_buffer(24)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # starting a program brings nothing back
    if libc.capget(header, rights) == 0:
        effective, permitted = (each & _OPEN_ANYTHING for each in struct.unpack_from("<2I", rights))
        libc.capset(header, struct.pack("<6I", effective, permitted, 0, 0, 0, 0))


def landlock_version() -> int:
    """Version of this kernel's Landlock; 0 if it has none."""
    return max(_libc().syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG), 0)


def _landlock(readable: Iterable[str], writable: str | None, gpu: bool) -> bool:
    """The rules about files. Returns whether the kernel agreed."""
    libc, version = _libc(), landlock_version()
    if version < 1:
        return False
    write = sum(right for since, right in _WRITE.items() if since <= version)
    everything = write | _READ
    scope = _SCOPE_SIGNAL_AND_SOCKETS if version >= 6 else 0
    attributes = struct.pack("<QQQ", everything, _NET, scope)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    rules = [*_readable(), *((place, _READ) for place in readable)]
    rules.append(("/dev/null", _READ_FILE | _WRITE_FILE | _TRUNCATE))
    if gpu:
        devices = [name for pattern in _GPU_DEVICES for name in glob.glob(pattern)]
        rules += [(place, _READ) for place in _GPU] + [(place, _USE) for place in (*devices, _OWN_THREADS)]
    if writable is not None:
        rules.append((writable, everything & ~_MAKE_DEVICE_OR_SOCKET))
    try:
        for place, allowed in rules:
            with contextlib.suppress(OSError):  # not every machine has every place
                inode = os.open(place, os.O_PATH | os.O_CLOEXEC)
                allowed &= everything if os.path.isdir(place) else everything & _OF_FILES
                libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("<Qi", allowed, inode), 0)
                os.close(inode)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)
