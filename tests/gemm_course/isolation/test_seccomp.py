"""The filter of system calls: an answer reaches no other process and no network, and libraries still work."""

from __future__ import annotations

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from confined_steps import BY_FILTER, BY_FILTER_IN_OTHER_WORDS
from gemm_course.isolation import seccomp


@pytest.mark.skipif(not seccomp.supported(), reason="this kernel filters no system calls")
@pytest.mark.parametrize("step", BY_FILTER)
def test_other_processes_and_machines_are_refused(outcomes, step):
    assert outcomes[step].startswith("PermissionError")


@pytest.mark.skipif(not seccomp.supported(), reason="this kernel filters no system calls")
@pytest.mark.parametrize(("step", "says"), BY_FILTER_IN_OTHER_WORDS.items())
def test_what_libraries_try_is_answered_as_they_expect(outcomes, step, says):
    """By an error that they meet elsewhere (in kernels without such a call, say), or by none though nothing is done."""
    assert outcomes[step].partition(":")[0] == says


def test_a_processor_without_known_calls_has_no_filter(monkeypatch):
    """Then `forbid` changes nothing, and says so."""
    monkeypatch.setattr(seccomp.platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(seccomp.ctypes, "CDLL", lambda *_, **__: pytest.fail("the kernel was asked"))
    assert not seccomp.supported()
    assert not seccomp.forbid()


@pytest.mark.parametrize(("answer", "known"), [(0, True), (2, True), (-1, False)])
def test_a_kernel_without_filters_has_none(monkeypatch, answer, known):
    asked = []

    class Kernel:
        def prctl(self, *call):
            asked.append(call)
            return answer

    monkeypatch.setattr(seccomp.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(seccomp.ctypes, "CDLL", lambda *_, **__: Kernel())
    assert seccomp.supported() is known
    assert asked == [(21, 0, 0, 0, 0)], "PR_GET_SECCOMP"
    if not known:
        assert not seccomp.forbid()
        assert {call[0] for call in asked} == {21}, "nothing is set"


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
MODES = [(False, False), (True, False), (True, True)]
CALLS = seccomp._ALLOWED | seccomp._REFUSED | seccomp._PRETENDED | seccomp._RULED
ARRIVES, UNKNOWN, REFUSED = 0x7FFF0000, 0x00050000 | errno.ENOSYS, 0x00050000 | errno.EPERM
SHARED, ANONYMOUS, VFORK, THREAD, NEW_USER = 0x1, 0x20, 0x4000, 0x10000, 0x10000000
ITSELF, SET_OWNER, ANOTHER = os.getpid(), 8, 1


def answer(code: bytes, arch: int, number: int, *arguments: int) -> int:
    """What a kernel that runs the filter does with a call."""
    seen = struct.pack("<iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    program, at, loaded = list(struct.iter_unpack("<HBBI", code)), 0, 0
    while True:
        operation, yes, no, value = program[at]
        at += 1
        match operation:
            case 0x20:
                loaded = struct.unpack_from("<I", seen, value)[0]
            case 0x54:
                loaded &= value
            case 0x15:
                at += yes if loaded == value else no
            case 0x35:
                at += yes if loaded >= value else no
            case 0x45:
                at += yes if loaded & value else no
            case 0x06:
                return value
            case _:
                pytest.fail(f"no such instruction: {operation:#x}")


@pytest.fixture(params=list(seccomp._ARCHITECTURES))
def machine(request):
    return request.param


def ask(machine, mode, name, *arguments):
    number = CALLS[name][list(seccomp._ARCHITECTURES).index(machine)]
    return answer(seccomp._program(machine, *mode), seccomp._ARCHITECTURES[machine], number, *arguments)


def test_every_call_has_the_number_of_the_kernels_header(machine):
    if not HEADERS[machine].is_file():
        pytest.skip(f"no {HEADERS[machine]} here")
    lines = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    header = {{"fstatat": "newfstatat"}.get(name, name): int(number) for name, number in lines}
    assert len(header) > 250
    ours = {name: numbers[list(seccomp._ARCHITECTURES).index(machine)] for name, numbers in CALLS.items()}
    assert {name: header[name] for name in ours if name in header} == {
        name: number for name, number in ours.items() if number is not None and (name in header or number < 424)
    }


def test_a_call_is_in_one_table():
    tables = (seccomp._ALLOWED, seccomp._REFUSED, seccomp._PRETENDED, seccomp._RULED)
    assert sum(map(len, tables)) == len(CALLS)
    for column in zip(*CALLS.values()):
        numbers = [number for number in column if number is not None]
        assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("mode", MODES)
def test_unlisted_calls_do_not_exist(machine, mode):
    column = list(seccomp._ARCHITECTURES).index(machine)
    allowed = {numbers[column] for numbers in seccomp._ALLOWED.values()}
    known = {numbers[column] for numbers in CALLS.values()}
    code, arch = seccomp._program(machine, *mode), seccomp._ARCHITECTURES[machine]
    for number in (*range(1024), 0x3FFFFFFF):
        if number in allowed:
            assert answer(code, arch, number) == ARRIVES
        elif number not in known:
            assert answer(code, arch, number) == UNKNOWN
    assert answer(code, arch ^ 1, 0) == answer(code, arch, 1 << 30) == REFUSED


@pytest.mark.parametrize("name", [*seccomp._REFUSED, "clone"])
def test_refused_calls_are_not_permitted(machine, name):
    if CALLS[name][list(seccomp._ARCHITECTURES).index(machine)] is not None:
        assert {ask(machine, mode, name) for mode in MODES} == {REFUSED}


@pytest.mark.parametrize(
    ("name", "arguments", "errors"),
    [
        ("mmap", (0, 4096, 3, SHARED | ANONYMOUS), [errno.ENOMEM, errno.ENOMEM, None]),
        ("mmap", (0, 4096, 3, SHARED), [None] * 3),
        ("memfd_create", (), [errno.EPERM, errno.EPERM, None]),
        ("execve", (), [errno.EPERM, None, None]),
        ("fchmod", (), [errno.EPERM, 0, 0]),
        ("setsid", (), [errno.EPERM, 0, 0]),
        ("clone", (THREAD,), [None] * 3),
        ("clone", (VFORK,), [errno.EPERM, None, None]),
        ("clone", (VFORK | NEW_USER,), [errno.EPERM] * 3),
        ("clone", (THREAD | NEW_USER,), [errno.EPERM] * 3),
        ("clone3", (), [errno.ENOSYS] * 3),
        ("kill", (ITSELF,), [None] * 3),
        ("kill", (ANOTHER,), [errno.EPERM] * 3),
        ("kill", (0xFFFFFFFF,), [errno.EPERM] * 3),
        ("prlimit64", (0,), [None] * 3),
        ("prlimit64", (ANOTHER,), [errno.EPERM] * 3),
        ("sched_setaffinity", (ITSELF,), [None] * 3),
        ("sched_setaffinity", (ANOTHER,), [errno.EPERM, errno.EPERM, 0]),
        ("sched_setscheduler", (ANOTHER,), [errno.EPERM, errno.EPERM, 0]),
        ("sched_setscheduler", (ITSELF,), [errno.EPERM, errno.EPERM, None]),
        ("setpriority", (0, ITSELF), [errno.EPERM, errno.EPERM, None]),
        ("setpriority", (0, ANOTHER), [errno.EPERM] * 3),
        ("setpriority", (1, 0), [errno.EPERM] * 3),
        ("ioprio_set", (1, 0), [errno.EPERM, errno.EPERM, None]),
        ("socket", (1, 5 | 0o2000000), [errno.EPERM, errno.EPERM, None]),
        ("socket", (1, 1), [errno.EPERM] * 3),
        ("socket", (2, 5), [errno.EPERM] * 3),
        ("socketpair", (1, 1 | 0o2000000), [None] * 3),
        ("socketpair", (1, 2), [errno.EPERM] * 3),
        ("connect", (), [errno.ENOENT] * 3),
        ("fcntl", (0, 1030), [None] * 3),
        ("fcntl", (0, SET_OWNER), [errno.EINVAL] * 3),
        ("fcntl", (0, 1024), [errno.EINVAL] * 3),
        ("prctl", (15,), [None] * 3),
        ("prctl", (1,), [errno.EINVAL] * 3),
        ("ioctl", (0, 0x5401), [None] * 3),
        ("ioctl", (0, 0x5412), [errno.ENOTTY] * 3),
        ("ioctl", (0, 0x8901), [errno.ENOTTY] * 3),
        ("ioctl", (0, 0x40086602), [errno.ENOTTY] * 3),
        ("ioctl", (0, 0x50009401), [errno.ENOTTY] * 3),
        ("ioctl", (0, 0xC00846D6), [errno.ENOTTY, errno.ENOTTY, None]),
        ("ioctl", (0, 0x30000001), [errno.ENOTTY, errno.ENOTTY, None]),
    ],
)  # fmt: skip
def test_arguments_decide(machine, name, arguments, errors):
    """For an answer that is interpreted, one that is compiled, and one on a GPU."""
    wanted = [ARRIVES if error is None else 0x00050000 | error for error in errors]
    assert [ask(machine, mode, name, *arguments) for mode in MODES] == wanted
