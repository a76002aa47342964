"""What a learner's process may ask the kernel for: no other process, no network, nothing that outlives it.

Only with a GPU does it get memory that its limit does not count.

A seccomp filter, made for one process after it is forked. Where the kernel or the processor has none, `forbid` returns
False and other limits have to do. A refused call fails like any other that is not permitted; nothing is killed. A few
calls do nothing and return 0, because libraries expect them to succeed.

The filter lists the calls that are refused, not those that are allowed: a GPU's driver, a compiler and each release of
a C library make other calls, and no list of those is complete. Landlock, resource limits and Bubblewrap apply as well.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 21, 22, 38, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in what a filter sees
_CLONE_VFORK, _CLONE_THREAD = 0x4000, 0x10000
_SHARED_ANONYMOUS = 0x21  # MAP_SHARED and MAP_ANONYMOUS: memory that RLIMIT_DATA does not count
_UNIX = 1  # sockets of this machine; of their kinds, which this part of an argument says, datagrams need no connection
_KIND, _STREAM, _SEQUENCE = 0xF, 1, 5

# Per processor: its AUDIT_ARCH, and its number of each call.
_NUMBERS = {
    "x86_64": (0xC000003E, {
        "mmap": 9, "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "connect": 42, "accept": 43,
        "socketpair": 53, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "semget": 64, "semop": 65,
        "semctl": 66, "shmdt": 67, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "chmod": 90, "fchmod": 91,
        "chown": 92, "fchown": 93, "lchown": 94, "ptrace": 101, "rt_sigqueueinfo": 129, "utime": 132,
        "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "mount": 165, "setxattr": 188,
        "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "tkill": 200,
        "sched_setaffinity": 203, "semtimedop": 220, "tgkill": 234, "utimes": 235, "mq_open": 240, "add_key": 248,
        "keyctl": 250, "ioprio_set": 251, "fchownat": 260, "futimesat": 261, "fchmodat": 268, "unshare": 272,
        "utimensat": 280, "accept4": 288, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "prlimit64": 302,
        "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "sched_setattr": 314, "memfd_create": 319,
        "bpf": 321, "execveat": 322, "userfaultfd": 323,
    }),
    "aarch64": (0xC00000B7, {
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "ioprio_set": 30, "mount": 40, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88,
        "unshare": 97, "ptrace": 117, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122,
        "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "setpriority": 140, "mq_open": 180,
        "msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192,
        "semop": 193, "shmget": 194, "shmctl": 195, "shmat": 196, "shmdt": 197, "socket": 198, "socketpair": 199,
        "accept": 202, "connect": 203, "add_key": 217, "keyctl": 219, "clone": 220, "execve": 221, "mmap": 222,
        "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "accept4": 242, "prlimit64": 261, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "sched_setattr": 274, "memfd_create": 279, "bpf": 280,
        "execveat": 281, "userfaultfd": 282,
    }),
}  # fmt: skip
_EVERYWHERE = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "clone3": 435, "pidfd_getfd": 438, "memfd_secret": 447,
    "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
}  # fmt: skip
_RUNS_PROGRAMS = ("execve", "execveat")
_ONLY_ITSELF = ("kill", "tgkill", "prlimit64", "sched_setaffinity")  # their first argument is a process
# Modes, owners, times of files: Landlock leaves them alone. A linker that makes its result executable must not fail.
_ATTRIBUTES = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "futimesat",
    "utimensat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr",
    "removexattrat", "file_setattr",
)  # fmt: skip
_DRIVERS_OWN = ("mmap", "memfd_create")  # what a GPU's driver does itself: memory that is shared and in no file
# Where a thread runs, by its number; a filter cannot distinguish it from a process's. A driver that places its threads
# must not fail, and an answer may not place other processes. So with a GPU a call about others does nothing, without an
# error.
_PLACES = ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
_PRIORITIES = {"setpriority": 0, "ioprio_set": 1}  # and what their first argument is where the second is a process
_SPECIAL = {"mmap", "clone", "clone3", "vfork", "socketpair", "connect", *_RUNS_PROGRAMS, *_ONLY_ITSELF}


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def _refuse(error: int = errno.EPERM) -> bytes:
    return _instruction(_RETURN, _ERRNO | error)


def _program(arch: int, numbers: dict[str, int], processes: bool, driver: bool) -> bytes:
    """The filter. Every rule for one call ends in a return, so a rule is skipped as a whole or not at all."""
    argument = lambda index: _instruction(_LOAD, _ARGUMENTS + 8 * index)  # noqa: E731 (its low half)
    allow = _instruction(_RETURN, _ALLOW)
    rules = {name: [_refuse()] for name in numbers if name not in _SPECIAL}
    rules["clone3"] = [_refuse(errno.ENOSYS)]  # its flags are in memory, out of sight: libraries then use clone
    bits = _CLONE_THREAD | (_CLONE_VFORK if processes else 0)
    rules["clone"] = [argument(0), _instruction(_ANY_BIT, bits, 0, 1), allow, _refuse()]
    rules["mmap"] = [
        argument(3), _instruction(_AND, _SHARED_ANONYMOUS), _instruction(_EQUAL, _SHARED_ANONYMOUS, 0, 1),
        _refuse(errno.ENOMEM), allow,
    ]  # fmt: skip
    itself = [_instruction(_EQUAL, os.getpid(), 1, 0), _instruction(_EQUAL, 0, 0, 1), allow]
    for name in _ONLY_ITSELF:
        rules[name] = [argument(0), *itself, _refuse()]
    kind = [argument(1), _instruction(_AND, _KIND)]
    connected = [_instruction(_EQUAL, _STREAM, 1, 0), _instruction(_EQUAL, _SEQUENCE, 0, 1)]
    rules["socketpair"] = [*kind, *connected, allow, _refuse()]
    rules["connect"] = [
        _refuse(errno.ENOENT)
    ]  # as if nobody listened: libraries handle that, and so does CUDA without MPS
    if processes:
        rules.update({name: [_refuse(0)] for name in _ATTRIBUTES if name in numbers})
    else:
        rules.update({name: [_refuse()] for name in (*_RUNS_PROGRAMS, "vfork") if name in numbers})
    if driver:
        rules = {name: rule for name, rule in rules.items() if name not in _DRIVERS_OWN}
        is_local = [argument(0), _instruction(_EQUAL, _UNIX, 1, 0), _refuse()]
        rules["socket"] = [*is_local, *kind, _instruction(_EQUAL, _SEQUENCE, 0, 1), allow, _refuse()]
        rules.update({name: [argument(0), *itself, _refuse(0)] for name in _PLACES})
        for name, process in _PRIORITIES.items():
            of_process = [argument(0), _instruction(_EQUAL, process, 1, 0), _refuse()]
            rules[name] = [*of_process, argument(1), *itself, _refuse()]
    start = [
        _instruction(_LOAD, _ARCH), _instruction(_EQUAL, arch, 1, 0), _refuse(),
        _instruction(_LOAD, _NUMBER), _instruction(_AT_LEAST, 1 << 30, 0, 1), _refuse(),  # x86's other set of numbers
    ]  # fmt: skip
    parts = [_instruction(_EQUAL, numbers[name], 0, len(rule)) + b"".join(rule) for name, rule in rules.items()]
    return b"".join([*start, *parts, allow])


def supported() -> bool:
    """Whether this kernel filters system calls, and the filter for this processor is known."""
    return platform.machine() in _NUMBERS and ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0


def forbid(processes: bool = False, driver: bool = False) -> bool:
    """Forbid this process, for good, what an answer has no need of. Returns whether the kernel agreed.

    It makes no socket. A GPU's driver makes one, at which other CUDA programs would find it, and fails if it cannot
    name it and listen. So with a GPU that much is allowed for local sockets of the driver's kind (SOCK_SEQPACKET). None
    can be connected, from here or to here, and nothing can be sent to a name.

    Args:
        processes: whether it may start programs, as a compiler starts an assembler. It may never fork itself.
        driver: whether a GPU's driver works in it, which needs shared memory and a local socket.
    """
    if not supported():
        return False
    arch, numbers = _NUMBERS[platform.machine()]
    code = _program(arch, {**numbers, **_EVERYWHERE}, processes, driver)
    libc = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(text))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(program, len(program)), 0, 0) == 0
