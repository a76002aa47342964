"""The record of scaled products: configurations, losses, and ours has to be right."""

from __future__ import annotations

import pytest

import scaled_api
from bench_stand_ins import LARGE
from course_kernels.bench import scaled
from course_kernels.bench.rows import Row
from course_kernels.bench.tuning.cute_sweep import SWEPT_8_BIT
from course_kernels.engine.tuning import time_model
from sweep_stand_ins import cost_of_choosing, cute_stand_in, on_a_gpu

__all__ = ["cute_stand_in", "on_a_gpu"]


def test_the_record_of_scaled_products(on_a_gpu, monkeypatch):
    backends = {"mine": 1.0, "spoilt": 1.5}

    class Ours(scaled.OursScaled):
        """Ours by way of torch, with a factor."""

        def __init__(self, backend):
            super().__init__("torch")
            self.name, self.factor = backend, backends[backend]

        def prepare(self, operands):
            calls = super().prepare(operands)
            for table in (calls.forward, calls.called):
                table[""] = lambda function=table[""]: function().mul_(self.factor)
            return calls

    monkeypatch.setattr(scaled_api, "by_name", lambda: {"large": LARGE})
    monkeypatch.setattr(scaled_api, "LONG", Row("long", "", (3, 0, 5), 16, 160, "compute"))
    losses = scaled_api.losses
    monkeypatch.setattr(scaled_api, "losses", lambda providers: losses(providers, "cpu"))
    monkeypatch.setattr(scaled, "providers", lambda: [Ours("mine")])
    # The stand-in's row is so small that the model would take tiles which are not measured for as many rows a group.
    monkeypatch.setattr(time_model, "fastest", lambda *asked: None)
    results = scaled_api.rows()
    large = {config.name for config in SWEPT_8_BIT if config.tile_m == 128 or config.cluster == 2}
    assert results["dtype"] == "float8_e4m3fn"
    assert set(results["rows"]["large"]["us"]["forward"]) == {"auto", "mine"} | large
    assert set(results["rows"]["large"]["us"]["called"]) == {"auto", "mine"}
    assert results["regrets"]["large"]["forward"]["times"] == cost_of_choosing("forward", large, 1) > 1.0
    compared = {other for passes in results["speedups"].values() for others in passes.values() for other in others}
    assert compared == set(results["speedups"]) == {"auto", "mine"}, "ours is not compared with what it chooses from"
    assert abs(results["losses"]["mine"]["mean"]) < 2**-9
    assert 0 < results["losses"]["mine"]["largest"] <= 2**-8
    # The others, which are not for so few rows, have nothing to lose.
    assert set(results["losses"]) == {"auto", "mine"} | {config.name for config in SWEPT_8_BIT if config.tile_m == 64}
    monkeypatch.setattr(scaled, "providers", lambda: [Ours("spoilt")])
    with pytest.raises(AssertionError, match="large, spoilt, forward: WrongResult"):
        scaled_api.rows()
