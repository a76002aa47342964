"""The measurements with scales of blocks: what is verified, and what a record has of it."""

from __future__ import annotations

import functools
import importlib.machinery
import re
import sys
import types

import pytest
import torch

import block_scaled
from block_scaled import Layer
from clock import Clock
from course_kernels.bench import record
from course_kernels.bench.interface import WrongResult
from course_kernels.bench.rows import Row
from course_kernels.engine.hopper import cute
from course_kernels.engine.tuning import gpu_constants
from course_kernels.kernels.cute_sm90.config import LARGE_BLOCK_SCALED, CuteConfig
from course_kernels.kernels.cute_sm90.form import Form

LINES, BLOCKS = (Form("m", "k", 1, scaling=scaling) for scaling in ("lines", "blocks"))

SMALL = Row("small", "5 over 3", (5, 0, 130), 140, 150, "compute")


@pytest.fixture
def layer():
    return block_scaled.Layer(SMALL, "cpu")


class Reader(Clock):
    """A clock that runs nothing: the interpreter takes seconds for each product."""

    def graph(self, function, pool=None):
        return function

    def interleaved_us(self, functions, repeats):
        return {name: [self.us.get(name, 10.0)] * repeats for name in functions}


def exact(layer):
    """The product, by torch."""
    bounds = zip((0, 5, 5), (5, 5, 135))
    parts = [block_scaled.as_quantised(layer.qx[start:end], layer.sx[start:end], 1)
             @ block_scaled.as_quantised(layer.qw[g], layer.sw[g], 128).mT
             for g, (start, end) in enumerate(bounds)]  # fmt: skip
    return torch.cat(parts).bfloat16()


def called(name, layer):
    """The result of a provider, and what verifies it."""
    calls = {each.name: each for each in block_scaled.providers()}[name].prepare(layer)
    return calls.forward[""](), calls.operands


def test_everything_is_verified_and_what_fails_is_noted(monkeypatch, capsys):
    monkeypatch.setattr(block_scaled, "TRITON", block_scaled.TRITON[:1])
    found, wrong = block_scaled.measure(SMALL, block_scaled.providers(), "cpu", Reader({"triton": 2.0}))
    ours = {"triton", "triton 128x128x128_8_3_1", "dA triton", "dB triton", "dB triton, whole blocks"}
    assert ours <= set(found["us"])
    assert set(found["us"]) == set(found["rate"])
    assert found["us"]["triton"]["median_us"] == 2.0
    assert found["rate"]["triton"] == round(2 * 135 * 140 * 150 / 2 / 1e6, 1)
    assert "9.0" in found["failed"]["cute"], "there is no GPU here"
    assert any(name.startswith("cute 128x192x128_2_4_cooperative_8") for name in found["failed"])
    assert any(each.startswith("small, cute: ") for each in wrong)
    assert {each.split(", ")[1].split(":")[0] for each in wrong} <= {"cute", "dA cute", "dB cute"}
    assert "  ! cute: " in capsys.readouterr().out


@pytest.fixture(params=block_scaled.DEEPGEMM)
def deep_gemm(request, monkeypatch):
    """A module of DeepGEMM's name, with its function by one of its names, and what the function asks for."""

    def product(lhs, rhs, out, grouped_layout):
        (x, x_scale), (weight, scale), layout = lhs, rhs, grouped_layout
        assert x_scale.stride() == (1, x.shape[0]), "TMA reads the factors of 128 rows at a time"
        assert all(each.is_contiguous() for each in (x, weight, scale, out))
        assert (layout.dtype, layout.shape) == (torch.int32, x.shape[:1])
        assert scale.shape == (weight.shape[0], -(-weight.shape[1] // 128), -(-weight.shape[2] // 128))
        left = block_scaled.as_quantised(x, x_scale, 1)
        for g in range(weight.shape[0]):
            rows = layout == g
            out[rows] = (left[rows] @ block_scaled.as_quantised(weight[g], scale[g], 128).mT).bfloat16()

    module = types.ModuleType("deep_gemm")
    module.__spec__ = importlib.machinery.ModuleSpec("deep_gemm", None)
    setattr(module, request.param, product)
    monkeypatch.setitem(sys.modules, "deep_gemm", module)


@pytest.mark.usefixtures("deep_gemm")
def test_deepgemm_where_it_is_installed(layer):
    whole = block_scaled.Layer(Row("whole", "two groups and an empty one", (128, 0, 256), 140, 150, "compute"), "cpu")
    result, part = called("deepgemm", whole)
    part.verify(result, "forward")
    assert whole.group_of_row.tolist() == [0] * 128 + [2] * 256
    with pytest.raises(ValueError, match=r"groups of multiples of 128 rows, got \(5, 0, 130\)"):
        called("deepgemm", layer)


def test_no_deepgemm_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(block_scaled.importlib.util, "find_spec", lambda name: None)
    assert "deepgemm" not in {each.name for each in block_scaled.providers()}


@pytest.mark.parametrize("kind", ["forward", "dA", "dB", "row"])
def test_a_wrong_element_is_found(layer, kind):
    exact = {"forward": layer.forward, "dA": lambda: layer.grad_x("triton"),
             "dB": lambda: layer.grad_w("triton")}  # fmt: skip
    if kind == "row":
        bounds = zip((0, 5, 5), (5, 5, 135))
        parts = [layer.qx[start:end].double() @ layer.qw[g].double().mT * layer.cols_of_b[g]
                 for g, (start, end) in enumerate(bounds)]  # fmt: skip
        result = (torch.cat(parts) * layer.rows_of_a[:, None]).bfloat16()
    else:
        result = exact[kind]()
    assert layer.wrong(result, kind) == 0
    result.view(-1, result.shape[-1])[-1 if kind != "dB" else 3, 7] += result.abs().max()
    assert layer.wrong(result, kind) == 1
    result.fill_(float("nan"))
    with pytest.raises(WrongResult, match=r"\d{3,} wrong elements"):
        block_scaled.Part(layer, kind).verify(result, "forward")


def test_quantisers():
    found = block_scaled.quantisers(SMALL, "cpu", Clock({"1x128": 0.5}))
    transposed = {f"1x128, transposed, {how}" for how in ("restarting", "whole blocks")}
    assert set(found["TB/s"]) == set(found["us"]) == {"1x128", "128x128"} | transposed
    assert found["TB/s"]["1x128"] == round(3 * 135 * 150 / 0.5 / 1e6, 2)


def test_an_error_where_ours_is_wrong(monkeypatch):
    monkeypatch.setattr(block_scaled, "ROWS", [SMALL])
    monkeypatch.setattr(block_scaled, "GpuTimer", Clock)
    monkeypatch.setattr(block_scaled, "Layer", lambda row, device: Layer(row, "cpu"))
    monkeypatch.setattr(block_scaled, "quantisers", lambda row: {"TB/s": {}})
    triton = block_scaled.provider("triton", exact, role="ours")
    zeros = functools.partial(block_scaled.provider, call=lambda layer: torch.zeros(135, 140))
    monkeypatch.setattr(block_scaled, "providers", lambda: [triton, zeros("cute 1", role="candidate")])
    found = block_scaled.rows()
    assert set(found["rows"]) == {"small"}
    assert set(found["rows"]["small"]["us"]) == {"triton"}
    assert "wrong elements" in found["rows"]["small"]["failed"]["cute 1"]
    monkeypatch.setattr(block_scaled, "providers", lambda: [triton, zeros("cute", role="ours")])
    with pytest.raises(AssertionError, match=r"small, cute: WrongResult: \d+ wrong elements"):
        block_scaled.rows()


def test_variants(monkeypatch, capsys):
    """Each is verified; one that is wrong or does not run is marked."""

    class Small(Layer):
        def configured(self, config, row_wise=False):
            if config.tile_n == 256:
                raise ValueError("too wide")
            return torch.zeros(135, 140) if config.stages == 5 else exact(self)

    monkeypatch.setattr(block_scaled, "GpuTimer", Clock)
    monkeypatch.setattr(block_scaled, "Layer", lambda row, device: Small(SMALL, "cpu"))
    monkeypatch.setattr(block_scaled, "ROWS_OF_VARIANTS", (SMALL,))
    monkeypatch.setattr(block_scaled, "VARIANTS", [block_scaled.VARIANTS[i] for i in (1, 0, 3)])
    monkeypatch.setattr(block_scaled, "peers", list)
    block_scaled.variants()
    said = capsys.readouterr().out
    names = [config.name for config in block_scaled.VARIANTS]
    assert f"! {names[1]}: ValueError: too wide" in said
    assert re.search(rf"! {names[2]}: WrongResult: \d+ wrong elements", said)
    assert re.search(rf"\n +[\d.]+ {names[0]}\n", said)
    assert f"! {names[0]}:" not in said


def test_a_record_has_all_that_the_recorded_one_has():
    recorded = next(iter(RECORDED["rows"].values()))
    assert set(recorded) == {"title", "us", "rate", "failed"}
    known = {each.name for each in block_scaled.providers()} | {"deepgemm"}
    # A way of storing that was tried, and is gone.
    tried = {name for name in recorded["us"] if re.fullmatch(r"cute \S+_window", name)}
    assert {name for name in {**recorded["us"], **recorded["failed"]} if "cute 1" not in name} <= known | tried


def test_all_configurations_can_be_built():
    assert all(config.why_not(BLOCKS) is None for config in (*block_scaled.SWEPT, *block_scaled.VARIANTS))
    assert LARGE_BLOCK_SCALED in block_scaled.VARIANTS
    assert all(config.why_not(LINES) is None for config in block_scaled.SWEPT_ROW_WISE)
    assert all(isinstance(config, CuteConfig) for config in block_scaled.SWEPT)
    assert len(block_scaled.ROWS) == 8
    assert {row.total_m for row in block_scaled.ROWS} == {32768}


RECORDED = record.load("block_scaled")


@pytest.mark.parametrize("name", RECORDED["rows"])
def test_what_is_chosen_is_nearly_the_fastest_of_what_was_measured(name):
    """These rows are larger than those that the time model was fitted to: what holds there has to hold here."""
    groups, rows, N, K = map(int, re.fullmatch(r"(\d+)x(\d+)_(\d+)_(\d+)", name).groups())
    gpu = gpu_constants.read(gpu_constants.file_of(RECORDED["provenance"]["gpu"])).gpu
    chosen = cute.choose(BLOCKS, rows, (groups * rows, N), K, groups, gpu)
    times = {name: us["median_us"] for name, us in RECORDED["rows"][name]["us"].items() if name.startswith("cute ")}
    assert len(times) > 2
    assert times[f"cute {chosen.name}"] <= 1.04 * min(times.values())
