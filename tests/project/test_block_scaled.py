"""The measurements with scales of blocks: what is verified, and what a record has of it."""

from __future__ import annotations

import importlib.machinery
import re
import sys
import types

import pytest
import torch

import block_scaled
from course_kernels.bench import record
from course_kernels.bench.rows import Row
from course_kernels.engine.hopper import cute
from course_kernels.engine.tuning import measured
from course_kernels.kernels.cute_sm90.config import LARGE_BLOCK_SCALED, CuteConfig


@pytest.fixture
def layer():
    return block_scaled.Layer(Row("small", "5 over 3", (5, 0, 130), 140, 150, "compute"), "cpu")


def in_turn(functions):
    return {name: [3.0, 1.0, 2.0] for name in functions}


def test_everything_is_verified_and_what_fails_is_noted(layer, monkeypatch):
    monkeypatch.setattr(block_scaled, "TRITON", block_scaled.TRITON[:1])
    results = block_scaled.measure(layer, in_turn, lambda function: function)
    ours = {"triton", "triton 128x128x128_8_3_1", "dA triton", "dB triton", "dB triton, whole blocks"}
    assert ours <= set(results["us"])
    assert results["us"]["triton"]["median_us"] == 2.0
    assert results["rate"]["triton"] == round(2 * 135 * 140 * 150 / 2 / 1e6, 1)
    assert "9.0" in results["failed"]["cute"], "there is no GPU here"
    assert any(name.startswith("cute 128x192x128_2_4_cooperative_8") for name in results["failed"])


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
    function, kind = block_scaled.peers(whole)["deepgemm"]
    whole.out.fill_(float("nan"))
    assert whole.wrong(function(), kind) == 0
    assert whole.group_of_row.tolist() == [0] * 128 + [2] * 256
    function, _ = block_scaled.calls(layer)["deepgemm"]
    with pytest.raises(ValueError, match=r"groups of multiples of 128 rows, got \(5, 0, 130\)"):
        function()


def test_no_deepgemm_where_it_is_not_installed(layer, monkeypatch):
    monkeypatch.setattr(block_scaled.importlib.util, "find_spec", lambda name: None)
    assert "deepgemm" not in block_scaled.calls(layer)


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
    assert layer.wrong(result, kind) > 100


def test_quantisers(layer):
    found = block_scaled.quantisers(layer, in_turn, lambda function: function)
    transposed = {f"1x128, transposed, {how}" for how in ("restarting", "whole blocks")}
    assert set(found["TB/s"]) == {"1x128", "128x128"} | transposed


def test_an_error_where_ours_is_wrong(monkeypatch):
    monkeypatch.setattr(block_scaled, "ROWS", block_scaled.ROWS[:1])
    monkeypatch.setattr(block_scaled, "Layer", lambda row: None)
    monkeypatch.setattr(block_scaled, "quantisers", lambda *arguments: {"TB/s": {}})
    entry = {"us": {}, "rate": {}, "failed": {"cute 1": "3 wrong elements"}}
    monkeypatch.setattr(block_scaled, "measure", lambda *arguments: entry)
    block_scaled.ROWS = (Row("a", "b", (1,), 1, 1, "compute"),)
    assert set(block_scaled.rows()["rows"]) == {"a"}
    entry["failed"]["triton"] = "1 wrong elements"
    with pytest.raises(AssertionError, match="a, triton: 1 wrong elements"):
        block_scaled.rows()


def test_variants(monkeypatch, capsys, layer):
    """Each is verified and timed; one that is wrong is marked."""

    def configured(config, row_wise=False):
        if config.tile_n == 256:
            raise ValueError("too wide")
        return torch.zeros(135, 140) if config.stages == 5 else layer.forward(backend="triton")

    monkeypatch.setattr(layer, "configured", configured)
    monkeypatch.setattr(block_scaled, "Layer", lambda row: layer)
    monkeypatch.setattr(block_scaled, "ROWS_OF_VARIANTS", (layer.row,))
    monkeypatch.setattr(block_scaled, "VARIANTS", [block_scaled.VARIANTS[i] for i in (1, 0, 3)])
    monkeypatch.setattr(block_scaled, "replayed", lambda function: function)
    monkeypatch.setattr(block_scaled.timing, "interleaved_us", lambda functions, repeats: in_turn(functions))
    block_scaled.variants()
    said = capsys.readouterr().out
    names = [config.name for config in block_scaled.VARIANTS]
    assert f"! {names[1]}: ValueError: too wide" in said
    assert re.search(rf"! {names[2]}: \d+ wrong elements", said)
    assert re.search(rf"\n +[\d.]+ {names[0]}\n", said)
    assert f"! {names[0]}:" not in said


def test_all_configurations_can_be_built():
    assert all(config.why_not(1, True) is None for config in (*block_scaled.SWEPT, *block_scaled.VARIANTS))
    assert LARGE_BLOCK_SCALED in block_scaled.VARIANTS
    assert all(config.why_not(1) is None for config in block_scaled.SWEPT_ROW_WISE)
    assert all(isinstance(config, CuteConfig) for config in block_scaled.SWEPT)
    assert len(block_scaled.ROWS) == 8
    assert {row.total_m for row in block_scaled.ROWS} == {32768}


RECORDED = record.load("block_scaled")


@pytest.mark.parametrize("name", RECORDED["rows"])
def test_what_is_chosen_is_nearly_the_fastest_of_what_was_measured(name):
    """These rows are larger than those that the time model was fitted to: what holds there has to hold here."""
    groups, rows, N, K = map(int, re.fullmatch(r"(\d+)x(\d+)_(\d+)_(\d+)", name).groups())
    gpu = measured.read(measured.file_of(RECORDED["provenance"]["gpu"])).gpu
    chosen = cute.choose(cute.KernelVariant("m", "k", 1, True), rows, (groups * rows, N), K, groups, gpu)
    times = {name: us["median_us"] for name, us in RECORDED["rows"][name]["us"].items() if name.startswith("cute ")}
    assert len(times) > 2
    assert times[f"cute {chosen.name}"] <= 1.04 * min(times.values())
