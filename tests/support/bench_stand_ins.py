"""Rows, a provider and a way to spoil its results, for tests of the benchmarks that need no GPU."""

from __future__ import annotations

import torch

from clock import Clock
from course_kernels.bench import grouped
from course_kernels.bench.interface import Calls, Provider
from course_kernels.bench.rows import Row
from course_kernels.testing import reference

TINY = Row("tiny", "40 over 4, 16, 24", (8, 0, 24, 8), 16, 24, "compute")

DECODE = Row("tiny-decode", "1 each over 3, 8, 16", (1, 1, 1), 8, 16, "memory")
TINY_8_BIT = Row("tiny", "40 over 4, 16, 32", (8, 0, 24, 8), 16, 32, "compute")
LARGE = Row("large", "400 over 2, 16, 32", (300, 100), 16, 32, "compute")


def product(mat_a, mat_b, offs, scale_a=None, scale_b=None):
    """The grouped product in bfloat16."""
    return reference.grouped_mm(mat_a, mat_b, offs, torch.bfloat16, scale_a=scale_a, scale_b=scale_b)


class Correct(Provider):
    """Ours, as far as these tests care; `spoil` changes a result before it is handed out."""

    name, label, role = "mine", "mine", "ours"

    def __init__(self, spoil=lambda result, of: result):
        self.spoil = spoil

    def prepare(self, o):
        def forward():
            return torch.cat([x.float() @ w.float().mT for x, w in zip(o.a.split(o.sizes), o.weight)]).bfloat16()

        def d_a():
            return torch.cat([d.float() @ w.float() for d, w in zip(o.d_out.split(o.sizes), o.weight)]).bfloat16()

        def d_b():
            parts = zip(o.d_out.split(o.sizes), o.a.split(o.sizes))
            return torch.stack([d.float().mT @ x.float() for d, x in parts]).bfloat16()

        passes = {"forward": forward, "called": forward, "dA": d_a, "dB": d_b}
        spoilt = {of: {"": lambda f=f, of=of: self.spoil(f(), of)} for of, f in passes.items()}
        step = {"": lambda: (self.spoil(forward(), "step"), d_a(), d_b())}
        return Calls(spoilt["forward"], spoilt["called"], spoilt["dA"], spoilt["dB"], step=step)


def measured_here(monkeypatch, us=None, **options):
    """Let `grouped.measure` run without a GPU, with the tests' clock and four repeats."""
    measured = grouped.measure

    def here(rows, providers, **arguments):
        return measured(rows, providers, **(arguments | {"timer": Clock(us), "device": "cpu", "repeats": 4} | options))

    monkeypatch.setattr(grouped, "measure", here)


def spoilt(index, value):
    def spoil(result, of):
        result[index] = value
        return result

    return spoil
