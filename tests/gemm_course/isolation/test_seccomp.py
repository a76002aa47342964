"""The filter of system calls: an answer reaches no other process and no network, and libraries still work."""

from __future__ import annotations

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
    """By an error that they meet elsewhere, or by none, though nothing was done."""
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
