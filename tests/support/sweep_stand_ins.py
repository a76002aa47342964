"""Programs that sweep configurations run as on a GPU: the reference for kernels, and a clock of the tests."""

from __future__ import annotations

import pytest

from bench_stand_ins import LARGE, measured_here, product
from course_kernels.bench.tuning import cute_sweep
from course_kernels.bench.tuning.cute_sweep import SWEPT, SWEPT_8_BIT
from course_kernels.engine.hopper import cute

# What the tests' clock says: the later in the sweep, the faster.
US = {config.name: 90.0 - i for i, config in enumerate([*SWEPT, *SWEPT_8_BIT])} | {"torch": 95.0, "dense": 20.0}


def cost_of_choosing(of, times, operand_bytes=2):
    """The chosen configuration's time over the fastest one's, for ``LARGE`` by the tests' clock; None if it was not
    measured."""
    chosen = cute_sweep.chosen(LARGE, of, operand_bytes).name
    if chosen not in times:
        return None
    return round(US[chosen] / min(US[name] for name in times if name not in ("torch", "dense", "mine")), 3)


@pytest.fixture
def cute_stand_in(monkeypatch):
    """The kernel as if it could run here; what it was asked for."""
    asked = []

    def multiply(given, out, form, config):
        assert form == cute.match_form(given, out)
        asked.append((config, form))
        out.copy_(product(given.a, given.b, given.offs, given.scaling.a, given.scaling.b))

    monkeypatch.setattr(cute, "check_available", lambda *asked: None)
    monkeypatch.setattr(cute, "multiply", multiply)
    return asked


@pytest.fixture
def on_a_gpu(monkeypatch, cute_stand_in):
    """The records' programs as on a GPU, with one row, the tests' clock and stand-ins for kernels."""
    measured_here(monkeypatch, US, repeats=2)
    return cute_stand_in
