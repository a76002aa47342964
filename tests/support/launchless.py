"""Calls whose launches do nothing. What is left is the host's work, in calls of functions: the same on any machine."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch

from course_kernels.engine import plans, triton_launch
from course_kernels.moe import launching, routing


class Nothing:
    """In place of a launch of a compiled kernel."""

    def __call__(self, addresses, stream, programs, total):
        pass


def launch_nothing(monkeypatch) -> None:
    """Launch nothing, otherwise as on a GPU. What is kept meanwhile is forgotten: it would launch nothing, ever."""

    def compile_nothing(plan, product, out):
        plan._programs, plan._needs_counter, plan._relaunch = (lambda total: 1), False, Nothing()

    monkeypatch.setattr(launching, "launch", lambda *given, **arguments: Nothing())
    monkeypatch.setattr(triton_launch.Plan, "_compile", compile_nothing)
    monkeypatch.setattr(triton_launch, "plan", lambda problem, product, out: triton_launch.Plan(problem))
    for module, name in ((plans, "plans"), (launching, "_launches"), (routing, "_sortings")):
        monkeypatch.setattr(module, name, plans.PlanCache())
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)


def counted(call) -> SimpleNamespace:
    """Calls of functions in one call: of Python's, and of C's."""
    found = SimpleNamespace(python=0, c=0)

    def note(frame, event, argument):
        found.python += event == "call"
        found.c += event == "c_call"

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found
