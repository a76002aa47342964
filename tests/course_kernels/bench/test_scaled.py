"""The benchmark with 8-bit operands, and the sweeps over configurations: nothing is timed, a clock of the tests says
how long each function took."""

from __future__ import annotations

import pytest
import torch

import scaled_api
import sweep_cute
from clock import Clock
from course_kernels import runtime
from course_kernels.bench import configurations, grouped, record, scaled
from course_kernels.bench import rows as bench_rows
from course_kernels.bench.configurations import SWEPT, SWEPT_8_BIT, Configured
from course_kernels.bench.interface import make_operands
from course_kernels.bench.rows import Row
from course_kernels.kernels.cute_sm90.config import CONFIGS, CONFIGS_8_BIT
from course_kernels.packed.backends import cute as grouped_cute
from course_kernels.testing import reference

TINY = Row("tiny", "40 over 4, 16, 32", (8, 0, 24, 8), 16, 32, "compute")
LARGE = Row("large", "400 over 2, 16, 32", (300, 100), 16, 32, "compute")
FP8 = scaled.DTYPE


def product(mat_a, mat_b, offs, scale_a=None, scale_b=None):
    return reference.grouped_mm(mat_a, mat_b, offs, torch.bfloat16, scale_a=scale_a, scale_b=scale_b)


@pytest.fixture
def cute(monkeypatch):
    """The kernel as if it could run here; what it was asked for."""
    asked = []

    def multiply(mat_a, mat_b, offs, out, form, config, scale_a=None, scale_b=None):
        assert form == grouped_cute.form_of(mat_a, mat_b, offs, out, scale_a=scale_a, scale_b=scale_b)
        asked.append((config, form))
        out.copy_(product(mat_a, mat_b, offs, scale_a, scale_b))

    monkeypatch.setattr(grouped_cute, "check_available", lambda device: None)
    monkeypatch.setattr(grouped_cute, "multiply", multiply)
    return asked


# operands and their verification


def test_operands_of_8_bits_come_with_scales():
    operands = make_operands(TINY, "cpu", FP8)
    assert operands.a.dtype == operands.weight.dtype == FP8
    assert (operands.a.shape, operands.weight.shape) == ((40, 32), (4, 16, 32))
    assert operands.weight.float().std().item() == pytest.approx(1.0, rel=0.1)
    assert (operands.scale_a.shape, operands.scale_b.shape) == ((40,), (4, 16))
    assert operands.out.dtype == torch.bfloat16
    assert operands.out.isnan().all()
    assert operands.d_out is operands.d_a is operands.d_weight is None
    dense = operands.as_dense()
    assert (dense.weight.shape, dense.scale_b.shape, dense.sizes) == ((1, 16, 32), (1, 16), (40,))
    result = product(operands.a, operands.weight.mT, operands.offs, operands.scale_a, operands.scale_b)
    assert 0.3 < result.float().std() < 3


def test_a_wrong_result_of_8_bit_operands_is_found():
    operands = make_operands(TINY, "cpu", FP8)
    o = operands
    right = product(o.a, o.weight.mT, o.offs, o.scale_a, o.scale_b)
    grouped.verify(right, operands, "forward")
    for value in (float("nan"), right[9, 5].item() + 1.0):
        broken = right.clone()
        broken[9, 5] = value
        with pytest.raises(grouped.WrongResult, match="1 of 384 elements of group 2 are wrong"):
            grouped.verify(broken, operands, "forward")
    for scales in ((o.scale_a * 1.2, o.scale_b), (o.scale_a, o.scale_b.flip(0))):
        with pytest.raises(grouped.WrongResult):
            grouped.verify(product(o.a, o.weight.mT, o.offs, *scales), operands, "forward")


def test_bytes_of_8_bit_operands_are_half():
    rows_a, rows_out, weights = 40 * 32, 40 * 16, 16 * 32
    assert TINY.bytes_moved("forward", 1) == rows_a + 3 * weights + 2 * rows_out
    assert TINY.bytes_moved("dA", 1) == rows_out + 3 * weights + 2 * rows_a
    assert TINY.bytes_moved("dB", 1) == rows_a + rows_out + 2 * 4 * weights


def test_8_bit_operands_have_no_gradients():
    with pytest.raises(ValueError, match="passes must be among forward, called, got 'dA'"):
        grouped.measure([TINY], [], passes=("forward", "dA"), dtype=FP8, timer=Clock())


# providers


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_ours_computes_scaled_products(backend):
    operands = make_operands(TINY, runtime.device(), FP8)
    calls = scaled.OursScaled(backend).prepare(operands)
    for of in ("forward", "called"):
        result = calls.of(of)[""]()
        grouped.verify(result, operands, of)
        assert (result.data_ptr() == operands.out.data_ptr()) == (of == "forward")
    assert not calls.d_a
    assert not calls.d_b


def test_peers_are_asked_for_the_right_products(monkeypatch):
    fast_ones = []

    def by_torch(a, b, scale_a, recipe_a, scale_b, recipe_b, *, offs, output_dtype, use_fast_accum):
        assert recipe_a is recipe_b is torch.nn.functional.ScalingType.RowWise
        fast_ones.append(use_fast_accum)
        return product(a, b, offs, scale_a, scale_b).to(output_dtype)

    def dense(a, b, *, scale_a, scale_b, out_dtype, use_fast_accum):
        assert (scale_a.shape, scale_b.shape) == ((40, 1), (1, 16))
        fast_ones.append(use_fast_accum)
        return (a.double() @ b.double() * scale_a * scale_b).to(out_dtype)

    monkeypatch.setattr(torch.nn.functional, "scaled_grouped_mm", by_torch, raising=False)
    monkeypatch.setattr(torch, "_scaled_mm", dense)
    operands = make_operands(TINY, "cpu", FP8)
    for provider in (scaled.TorchScaled(False), scaled.TorchScaled(True), scaled.DenseScaled()):
        assert provider.unavailable() is None
        assert provider.unsuited(TINY) is None
        calls = provider.prepare(operands)
        for function in calls.forward.values():
            grouped.verify(function(), calls.operands or operands, "forward")
    assert fast_ones == [False, True, False, True]
    assert "multiples of 16" in scaled.TorchScaled(True).unsuited(Row("odd", "", (4,), 24, 32, "compute"))
    assert scaled.DenseScaled().unsuited(Row("few", "", (1,), 16, 16, "memory"))


def test_every_backend_of_ours_and_both_ways_of_torch_are_measured():
    assert [provider.name for provider in scaled.providers()] == ["triton", "cute", "torch", "torch-fast", "dense"]


# configurations


def test_swept_configurations_can_be_built_and_hold_those_that_are_chosen():
    for swept, shipped, operand_bytes in ((SWEPT, CONFIGS, 2), (SWEPT_8_BIT, CONFIGS_8_BIT, 1)):
        assert [config.name for config in swept if config.why_not(operand_bytes)] == []
        assert len({config.name for config in swept}) == len(swept)
        assert set(shipped) <= set(swept)
        for row in bench_rows.by_name().values():
            for of in ("forward", "dA", "dB") if operand_bytes == 2 else ("forward",):
                assert configurations.chosen(row, of, operand_bytes) in swept


def test_a_configuration_computes_what_it_is_for(cute):
    tall, low = SWEPT[0], next(config for config in SWEPT if config.tile_m == 64 and config.cluster == 1)
    pair = next(config for config in SWEPT if config.tile_m == 64 and config.cluster == 2)
    for row, dtype, expected in (
        (LARGE, torch.bfloat16, {"forward", "dA", "dB"}),
        (LARGE, FP8, {"forward"}),
        (TINY, torch.bfloat16, {"dB"}),
        (TINY, FP8, set()),
    ):
        forms = {"forward": ("m", "k", dtype.itemsize), "dA": ("m", "n", 2), "dB": ("k", "n", 2)}
        operands = make_operands(row, "cpu", dtype)
        for config in (tall, low, pair):
            calls = Configured(config).prepare(operands)
            for of in ("forward", "called", "dA", "dB"):
                # Along M few rows a group have the tiles of 64 rows, and no others; a pair of these goes for many, too.
                mine = of in expected if config is tall else (row is TINY or config is pair) and of in ("forward", "dA")
                mine &= dtype != FP8 or of == "forward"
                assert bool(calls.of(of)) == mine
                for function in calls.of(of).values():
                    cute.clear()
                    grouped.verify(function(), operands, of)
                    assert cute[0][0] is config
                    assert cute[0][1] == forms[of]


def test_regrets_say_what_the_choice_costs():
    chosen = configurations.chosen(LARGE, "forward").name
    other = next(config.name for config in SWEPT if config.name != chosen)
    times = {chosen: 12.0, other: 10.0, "torch": 5.0}
    us = {name: {"median_us": time} for name, time in times.items()}
    entries = {"large": {"us": {"forward": us, "called": us, "dA": {"torch": us["torch"]}}}}
    found = configurations.regrets({"large": LARGE}, entries)
    assert found == {"large": {"forward": {"best": other, "chosen": chosen, "times": 1.2}}}
    del us[chosen]
    found = configurations.regrets({"large": LARGE}, entries)
    assert found["large"]["forward"]["times"] is None


# records

# What the tests' clock says: the later in the sweep, the faster.
US = {config.name: 90.0 - i for i, config in enumerate([*SWEPT, *SWEPT_8_BIT])} | {"torch": 95.0, "dense": 20.0}


def cost_of_choosing(of, times, operand_bytes=2):
    """The chosen configuration's time over the fastest one's, for ``LARGE`` by the tests' clock."""
    chosen = configurations.chosen(LARGE, of, operand_bytes).name
    return round(US[chosen] / min(US[name] for name in times if name not in ("torch", "dense", "mine")), 3)


@pytest.fixture
def on_a_gpu(monkeypatch, cute):
    """The records' programs as on a GPU, with one row, the tests' clock and stand-ins for kernels."""
    measured = grouped.measure

    def here(rows, providers, **arguments):
        return measured(rows, providers, timer=Clock(US), repeats=2, device="cpu", **arguments)

    monkeypatch.setattr(grouped, "measure", here)
    return cute


# Extents and groups are those of zipf128-up, as the host sees them; there what is chosen is about 5 % ahead of what is
# 3 to 5 % ahead here.
TOLD_APART_BY_NOBODY = ("half-empty128", "dB")


@pytest.mark.parametrize(("name", "operand_bytes"), [("sweep_cute", 2), ("scaled_grouped_mm", 1)])
def test_what_is_chosen_is_what_was_recorded_as_fast(name, operand_bytes):
    measured, table = record.load(name), bench_rows.by_name()
    regrets = configurations.regrets(table, measured["rows"], operand_bytes)
    assert regrets == measured["regrets"], "what is chosen now was not chosen then: measure again"
    times = {(row, of): each["times"] for row, passes in regrets.items() for of, each in passes.items()}
    # "auto" leaves few rows of 16 bits to Triton's kernels, so they may be chosen worse.
    few = {row for row, each in table.items() if each.total_m <= grouped_cute.FEW_ROWS * each.groups}
    checked = {at: ratio for at, ratio in times.items() if operand_bytes == 1 or at[0] not in few}
    assert len(checked) >= 10
    assert {at for at, ratio in checked.items() if ratio > 1.04} <= {TOLD_APART_BY_NOBODY}
    assert checked.get(TOLD_APART_BY_NOBODY, 1.0) < 1.06


def test_the_sweep_ranks_configurations_and_says_what_choosing_costs(on_a_gpu, monkeypatch, capsys):
    monkeypatch.setattr(sweep_cute, "by_name", lambda: {"large": LARGE})
    results = sweep_cute.rows()
    times = results["rows"]["large"]["us"]
    tall = {config.name for config in SWEPT if config.tile_m >= 128}
    pairs = {config.name for config in SWEPT if config.tile_m == 64 and config.cluster == 2}
    assert set(times["forward"]) == set(times["dA"]) == tall | pairs | {"torch", "dense"}
    along_k = {
        config.name
        for config in SWEPT
        if config.tile_m >= 128 and not config.tail_tile_n and not config.split_last_wave
    }
    assert set(times["dB"]) == along_k | {"torch", "dense"}
    costs = {of: each["times"] for of, each in results["regrets"]["large"].items()}
    assert costs == {of: cost_of_choosing(of, times[of]) for of in ("forward", "dA", "dB")}
    assert min(costs.values()) > 1.0
    assert results["speedups"] == {}
    shown = capsys.readouterr().out
    ranks = next(line for line in shown.splitlines() if line.startswith("  forward: ")).removeprefix("  forward: ")
    assert [cell.split()[0] for cell in ranks.split(", ")] == sorted(times["forward"], key=US.get)
    assert "regrets" in shown


def test_a_configuration_that_is_wrong_is_noted_and_has_no_times(on_a_gpu, monkeypatch, capsys):
    right = grouped_cute.multiply

    def multiply(mat_a, mat_b, offs, out, form, config):
        right(mat_a, mat_b, offs, out, form, config)
        if config is SWEPT[1]:
            out.view(-1)[0] += 3

    monkeypatch.setattr(grouped_cute, "multiply", multiply)
    monkeypatch.setattr(sweep_cute, "by_name", lambda: {"large": LARGE})
    entry = sweep_cute.rows()["rows"]["large"]
    assert SWEPT[1].name not in entry["us"]["forward"]
    assert "WrongResult" in entry["failed"][SWEPT[1].name]["forward"]
    assert f"! {SWEPT[1].name} failed, forward: WrongResult" in capsys.readouterr().out


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
    results = scaled_api.rows()
    large = {config.name for config in SWEPT_8_BIT if config.tile_m == 128 or config.cluster == 2}
    assert results["dtype"] == "float8_e4m3fn"
    assert set(results["rows"]["large"]["us"]["forward"]) == {"mine"} | large
    assert set(results["rows"]["large"]["us"]["called"]) == {"mine"}
    assert results["regrets"]["large"]["forward"]["times"] == cost_of_choosing("forward", large, 1) > 1.0
    assert results["speedups"] == {}, "ours is not compared with what it chooses from"
    assert abs(results["losses"]["mine"]["mean"]) < 2**-9
    assert 0 < results["losses"]["mine"]["largest"] <= 2**-8
    # The others, which are not for so few rows, have nothing to lose.
    assert set(results["losses"]) == {"mine"} | {config.name for config in SWEPT_8_BIT if config.tile_m == 64}
    monkeypatch.setattr(scaled, "providers", lambda: [Ours("spoilt")])
    with pytest.raises(AssertionError, match="large, spoilt, forward: WrongResult"):
        scaled_api.rows()


@pytest.mark.gpu
def test_one_row_of_scaled_products_on_the_gpu():
    row = Row("small", "", (100, 0, 300, 7), 512, 256, "compute")
    providers = [*scaled.providers(), *map(Configured, SWEPT_8_BIT)]
    entry = grouped.measure([row], providers, passes=("forward", "called"), dtype=FP8, repeats=5)["rows"]["small"]
    assert entry["failed"] == {}
    assert {"triton", "torch", "dense"} <= set(entry["us"]["forward"])
    assert all(us["median_us"] > 0 for by in entry["us"].values() for us in by.values())
