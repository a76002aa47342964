"""The sweep over configurations ranks them, and notes those that are wrong."""

from __future__ import annotations

import sweep_cute
from bench_stand_ins import LARGE
from course_kernels.bench.configurations import SWEPT
from course_kernels.packed.backends import cute as grouped_cute
from sweep_stand_ins import US, cost_of_choosing, cute, on_a_gpu

__all__ = ["cute", "on_a_gpu"]


def test_the_sweep_ranks_configurations_and_says_what_choosing_costs(on_a_gpu, monkeypatch, capsys):
    monkeypatch.setattr(sweep_cute, "by_name", lambda: {"large": LARGE})
    results = sweep_cute.rows()
    times = results["rows"]["large"]["us"]
    tall = {config.name for config in SWEPT if config.tile_m >= 128}
    pairs = {config.name for config in SWEPT if config.tile_m == 64 and config.cluster == 2}
    assert set(times["forward"]) == set(times["dA"]) == tall | pairs | {"torch", "dense"}
    tall_ones = [config for config in SWEPT if config.tile_m >= 128]
    along_k = {each.name for each in tall_ones if not each.tail_tile_n and not each.split_last_wave}
    assert set(times["dB"]) == along_k | {"torch", "dense"}
    costs = {of: each["times"] for of, each in results["regrets"]["large"].items()}
    assert costs == {of: cost_of_choosing(of, times[of]) for of in ("forward", "dA", "dB")}
    assert any(costs.values())
    assert results["speedups"] == {}
    shown = capsys.readouterr().out
    ranks = next(line for line in shown.splitlines() if line.startswith("  forward: ")).removeprefix("  forward: ")
    assert [cell.split()[0] for cell in ranks.split(", ")] == sorted(times["forward"], key=US.get)
    assert "regrets" in shown


def test_a_configuration_that_is_wrong_is_noted_and_has_no_times(on_a_gpu, monkeypatch, capsys):
    right = grouped_cute.multiply

    def multiply(operands, out, variant, config):
        right(operands, out, variant, config)
        if config is SWEPT[1]:
            out.view(-1)[0] += 3

    monkeypatch.setattr(grouped_cute, "multiply", multiply)
    monkeypatch.setattr(sweep_cute, "by_name", lambda: {"large": LARGE})
    entry = sweep_cute.rows()["rows"]["large"]
    assert SWEPT[1].name not in entry["us"]["forward"]
    assert "WrongResult" in entry["failed"][SWEPT[1].name]["forward"]
    assert f"! {SWEPT[1].name} failed, forward: WrongResult" in capsys.readouterr().out
