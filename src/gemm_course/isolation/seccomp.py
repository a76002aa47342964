"""The system calls that a learner's process may make: no other process, no network, no state that outlives it.

Only with a GPU does it get memory that its limit does not count.

The seccomp filter is made for one process after it is forked. If the kernel or the processor supports none, `forbid`
returns False and the other limits remain: Landlock, resource limits and Bubblewrap.

The filter lists the calls that are allowed. Any other call fails with ENOSYS, as in a kernel that does not have it. C
libraries and runtimes expect that, because they also run on older kernels, and then use an older call. So a call that
nobody thought of, or that a later kernel adds, is closed. The list holds all calls in traces of answers (interpreted,
compiled, on a GPU), and the variants that other C libraries, compilers and drivers use instead.

Calls that an answer is likely to try fail with EPERM: the learner then reads that it is not permitted. A few calls do
nothing and return 0, because libraries expect them to succeed. No call ends the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable

_PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 21, 22, 38, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in the filter's input
_CLONE_VFORK, _CLONE_THREAD, _CLONE_NAMESPACES = 0x4000, 0x10000, 0x7E020000
_SHARED_ANONYMOUS = 0x21  # MAP_SHARED and MAP_ANONYMOUS: memory that RLIMIT_DATA does not count
_UNIX = 1  # sockets of this machine; the lowest bits of an argument are their kind. Datagrams need no connection
_KIND, _STREAM, _SEQUENCE = 0xF, 1, 5
# Permitted with a descriptor: F_DUPFD to F_SETLKW (but not F_SETOWN, F_SETSIG and the like, by which the kernel
# sends any signal to any process of the user's), locks, the sizes of pipes, the seals of memory.
_DESCRIPTORS = (0, 1, 2, 3, 4, 5, 6, 7, 9, 36, 37, 38, 1030, 1031, 1032, 1033, 1034)
# Permitted requests to a file: is it a terminal, how wide, how many bytes are ready; close it at execve, do not block,
# share the blocks of another file. A driver defines its own, so with a GPU all are allowed except those of terminals,
# sockets (FIOSETOWN is a second F_SETOWN) and file systems, whose attributes and snapshots would stay.
_CONTROLS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5450, 0x5451, 0x5421, 0x40049409, 0x4020940D)
_NOT_DRIVERS, _CONTROLS_KIND = (0x5400, 0x8900, 0x6600, 0x5800, 0x9400, 0xF500), 0xFF00
# Permitted to prctl: read, name a thread, round its timers, gain no rights, and how memory and vectors are used. Not
# PR_SET_PDEATHSIG, or it could outlive the process that started it.
_OPTIONS = (2, 3, 15, 16, 21, 23, 29, 30, 38, 39, 41, 42, 50, 51, 54, 55, 56, 63, 64, 0x53564D41, 0x41555856)

# AUDIT_ARCH of each processor. In the tables below each call has one number per processor; some have no such call.
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Left out on purpose, should a library ask for one: inotify and fanotify (tell of files that Landlock hides), mq_unlink
# and request_key (change what outlives the process), pidfd_open, kcmp, process_madvise, move_pages and migrate_pages
# (other processes), open_by_handle_at (files without a path), sync (all disks), seccomp and Landlock's calls.
_ALLOWED = {
    # Files. Landlock decides by name which ones it may open or change, and the limits how large they get.
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287), "lseek": (8, 62),
    "open": (2, None), "openat": (257, 56), "creat": (85, None), "close": (3, 57), "close_range": (436, 436),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "flock": (73, 32), "stat": (4, None), "fstat": (5, 80),
    "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10),
    "listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13), "getdents": (78, None),
    "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "umask": (95, 166),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None), "mknodat": (259, 33), "truncate": (76, 45),
    "ftruncate": (77, 46), "fallocate": (285, 47), "fadvise64": (221, 223), "fsync": (74, 82), "fdatasync": (75, 83),
    "sync_file_range": (277, 84), "sendfile": (40, 71), "copy_file_range": (326, 285),
    # Pipes, sockets that it has, and waiting for data from them.
    "pipe": (22, None), "pipe2": (293, 59), "poll": (7, None), "ppoll": (271, 73), "select": (23, None),
    "pselect6": (270, 72), "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "eventfd": (284, None),
    "eventfd2": (290, 19), "signalfd": (282, None), "signalfd4": (289, 74), "bind": (49, 200), "listen": (50, 201),
    "getsockname": (51, 204), "getpeername": (52, 205), "getsockopt": (55, 209), "setsockopt": (54, 208),
    "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211), "recvmsg": (47, 212), "shutdown": (48, 210),
    # Its memory, and the memory node that holds it.
    "brk": (12, 214), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "msync": (26, 227), "mincore": (27, 232), "mlock": (149, 228), "mlock2": (325, 284), "munlock": (150, 229),
    "mlockall": (151, 230), "munlockall": (152, 231), "pkey_mprotect": (329, 288), "pkey_alloc": (330, 289),
    "pkey_free": (331, 290), "mbind": (237, 235), "set_mempolicy": (238, 237), "get_mempolicy": (239, 236),
    # Its threads and programs: their start, their end, and how they wait for each other.
    "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95), "futex": (202, 98),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293), "membarrier": (324, 283),
    "arch_prctl": (158, None), "sched_yield": (24, 124), "restart_syscall": (219, 128),
    # Signals to itself and time.
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "pause": (34, None),
    "alarm": (37, None), "getitimer": (36, 102), "setitimer": (38, 103), "timer_create": (222, 107),
    "timer_settime": (223, 110), "timer_gettime": (224, 108), "timer_getoverrun": (225, 109),
    "timer_delete": (226, 111), "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    # Facts about the process and its machine.
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getpgid": (121, 155), "getpgrp": (111, None),
    "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158), "capget": (125, 90),
    "getrlimit": (97, 163), "setrlimit": (160, 164), "getrusage": (98, 165), "getpriority": (140, 141),
    "ioprio_get": (252, 31), "sched_getaffinity": (204, 123), "sched_getattr": (315, 275), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "sched_rr_get_interval": (148, 127), "getcpu": (309, 168), "uname": (63, 160), "sysinfo": (99, 179),
    "getrandom": (318, 278),
}  # fmt: skip
# Refused with EPERM, not as if they did not exist.
_REFUSED = {
    # Other processes, and sockets to reach them.
    "fork": (57, None), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "accept": (43, 202), "accept4": (288, 242),
    # Objects that outlive a process.
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "add_key": (248, 217), "keyctl": (250, 219),
    # Memory that no limit counts.
    "memfd_secret": (447, 447),
    # The machine.
    "mount": (165, 40), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
}  # fmt: skip
# If it may start programs, these do nothing and return 0: those programs must not fail.
_PRETENDED = {
    # Modes, owners, times of files, which Landlock leaves alone. A linker makes its result executable.
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "removexattrat": (466, 466), "file_setattr": (469, 469),
    # A session or a process group of its own, in which it would survive its group's end. torch starts compilers so.
    "setsid": (112, 157), "setpgid": (109, 154),
}  # fmt: skip
# Their arguments decide, or the purpose of the process: see `_rules`.
_RULED = {
    "mmap": (9, 222), "memfd_create": (319, 279), "clone": (56, 220), "clone3": (435, 435), "vfork": (58, None),
    "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261),
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "fcntl": (72, 25), "ioctl": (16, 29),
    "prctl": (157, 167),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip
_ONLY_ITSELF = ("kill", "tgkill", "prlimit64", "sched_setaffinity")  # their first argument is a process
# The processor of a thread, by the thread's number; a filter cannot distinguish it from a process's. A driver that
# places its threads must not fail, and an answer may not place other processes. So with a GPU a call about others does
# nothing, without an error.
_PLACES = ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
_PRIORITIES = {"setpriority": 0, "ioprio_set": 1}  # and their first argument if the second is a process


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def _argument(index: int, bits: int = 0xFFFFFFFF) -> list[bytes]:
    """Load the low half of an argument, or some bits of it."""
    return [_instruction(_LOAD, _ARGUMENTS + 8 * index), _instruction(_AND, bits)]


def _among(values: Iterable[int], then: list[bytes], otherwise: list[bytes]) -> list[bytes]:
    """Compare the loaded number with each value. Both branches end in a return."""
    values = tuple(values)
    after = [len(otherwise) + len(values) - 1 - index for index in range(len(values))]
    return [*(_instruction(_EQUAL, value, skip) for value, skip in zip(values, after)), *otherwise, *then]


_YES = [_instruction(_RETURN, _ALLOW)]


def _no(error: int = errno.EPERM) -> list[bytes]:
    return [_instruction(_RETURN, _ERRNO | error)]


def _rules(processes: bool, driver: bool) -> dict[str, list[bytes]]:
    """The reply to each call that the filter knows. Every rule ends in a return."""
    rules = dict.fromkeys(_ALLOWED, _YES) | dict.fromkeys((*_REFUSED, *_RULED), _no())
    rules |= dict.fromkeys(_PRETENDED, _no(0 if processes else errno.EPERM))
    if processes:
        rules |= dict.fromkeys(("execve", "execveat", "vfork"), _YES)
    threads = _instruction(_ANY_BIT, _CLONE_THREAD | (_CLONE_VFORK if processes else 0), 0, 1)
    rules["clone"] = [*_argument(0), _instruction(_ANY_BIT, _CLONE_NAMESPACES, 2), threads, *_YES, *_no()]
    rules["clone3"] = _no(errno.ENOSYS)  # its flags are in memory, out of sight: libraries then use clone
    itself = (os.getpid(), 0)
    for name in _ONLY_ITSELF:
        rules[name] = [*_argument(0), *_among(itself, _YES, _no())]
    rules["socketpair"] = [*_argument(1, _KIND), *_among((_STREAM, _SEQUENCE), _YES, _no())]
    # As if nobody listened: libraries handle that, and so does CUDA without MPS.
    rules["connect"] = _no(errno.ENOENT)
    # The kernel itself replies so to an unknown command.
    rules["fcntl"] = [*_argument(1), *_among(_DESCRIPTORS, _YES, _no(errno.EINVAL))]
    rules["prctl"] = [*_argument(0), *_among(_OPTIONS, _YES, _no(errno.EINVAL))]
    other = _no(errno.ENOTTY)
    if driver:
        other = [_instruction(_AND, _CONTROLS_KIND), *_among(_NOT_DRIVERS, other, _YES)]
        sequence = [*_argument(1, _KIND), *_among([_SEQUENCE], _YES, _no())]
        rules["socket"] = [*_argument(0), *_among([_UNIX], sequence, _no())]
        rules["mmap"] = rules["memfd_create"] = _YES  # memory that is shared and in no file
        for name in _PLACES:
            rules[name] = [*_argument(0), *_among(itself, _YES, _no(0))]
        for name, process in _PRIORITIES.items():
            of_itself = [*_argument(1), *_among(itself, _YES, _no())]
            rules[name] = [*_argument(0), *_among([process], of_itself, _no())]
    else:
        rules["mmap"] = [
            *_argument(3, _SHARED_ANONYMOUS), *_among([_SHARED_ANONYMOUS], _no(errno.ENOMEM), _YES)
        ]  # fmt: skip
    rules["ioctl"] = [*_argument(1), *_among(_CONTROLS, _YES, other)]
    return rules


def _program(machine: str, processes: bool, driver: bool) -> bytes:
    """The filter for a processor."""
    column = list(_ARCHITECTURES).index(machine)
    numbers = {name: both[column] for name, both in (_ALLOWED | _REFUSED | _PRETENDED | _RULED).items()}
    program = [
        _instruction(_LOAD, _ARCH), _instruction(_EQUAL, _ARCHITECTURES[machine], 1), *_no(),
        _instruction(_LOAD, _NUMBER), _instruction(_AT_LEAST, 1 << 30, 0, 1), *_no(),  # x86's other set of numbers
    ]  # fmt: skip
    for name, rule in _rules(processes, driver).items():
        if numbers[name] is not None:
            program += [_instruction(_EQUAL, numbers[name], 0, len(rule)), *rule]
    return b"".join([*program, *_no(errno.ENOSYS)])


def supported() -> bool:
    """Return whether this kernel filters system calls and we have a filter for this processor."""
    return platform.machine() in _ARCHITECTURES and ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0


def forbid(processes: bool = False, driver: bool = False) -> bool:
    """Forbid this process, for good, all calls that an answer does not need. Returns whether the kernel agreed.

    It makes no socket. A GPU's driver makes one, for other CUDA programs to find, and fails if it cannot name it and
    listen. So with a GPU these calls are allowed for local sockets of the driver's kind (SOCK_SEQPACKET). They cannot
    connect or be connected to, and no message can be sent to a name.

    Args:
        processes: whether it may start programs, as a compiler starts an assembler. It may never fork itself.
        driver: whether a GPU's driver works in it, which needs shared memory and a local socket.
    """
    if not supported():
        return False
    code = _program(platform.machine(), processes, driver)
    libc = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(text))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(program, len(program)), 0, 0) == 0
