"""Numbers about the layer of experts, on one GPU and on several, from made-up records."""

from __future__ import annotations

import json
import re

import pytest

from gemm_course.lessons import layer_records
from places import ROOT


def layer_row(tokens, routing="zipf", model="a-3b", **us):
    return {"model": model, "tokens": tokens, "routing": routing, "us": {k.replace("_", " "): v for k, v in us.items()}}


def test_rows_of_a_layer_are_those_of_the_model_by_tokens():
    rows = [layer_row(64), layer_row(8, model="b"), layer_row(1)]
    assert layer_records.rows_of("a-3b", {"rows": rows}) == [rows[2], rows[0]]
    assert layer_records.rows_of("c", {"rows": rows}) == []


def test_without_a_record_of_the_layer_there_are_no_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(layer_records.record, "RESULTS", tmp_path)
    assert layer_records.rows_of("a-3b") == []
    assert layer_records.gains([]) == layer_records.overheads([], "step") == {}


def test_gains_of_a_layer_are_by_routing():
    rows = [
        layer_row(1, ours_forward=5.0), layer_row(64, transformers_forward=12.0, ours_forward=10.0, graph_forward=1.0),
        layer_row(64, "uniform", transformers_forward=9.0, ours_forward=6.0),
        layer_row(4096, transformers_forward=40.0, ours_forward=20.0),
    ]  # fmt: skip
    assert layer_records.gains(rows) == {
        "Zipf routing, recorded": {64: 1.2, 4096: 2.0},
        "uniform routing, recorded": {64: 1.5},
    }


def test_overheads_of_a_layer_are_over_its_own_products():
    rows = [
        layer_row(
            64, products_step=10.0, graph_step=99.0, ours_step=12.0, transformers_step=20.0, products_forward=4.0
        ),
        layer_row(4096, products_step=100.0, ours_step=110.0, liger_step=150.0, ours_forward=5.0),
    ]
    assert layer_records.overheads(rows, "step") == {
        "fifteen operations": {64: 2.0}, "this library": {64: 1.2, 4096: 1.1}, "Liger": {4096: 1.5},
    }  # fmt: skip


def test_gains_of_forwards_are_over_the_faster_way_of_a_peer():
    us = {"products": 9.0, "ours": 10.0, "transformers": 30.0, "batched": 20.0, "flashinfer": 9.5}
    rows = [
        {"model": "a", "tokens": 1, "us": us},
        {"model": "a", "tokens": 64, "us": {"ours": 10.0, "transformers": 15.0}},
    ]
    assert layer_records.forward_gains({"rows": rows}, "flashinfer") == {"a": {1: 0.95}}
    assert layer_records.forward_gains({"rows": rows}, "transformers") == {"a": {1: 2.0, 64: 1.5}}
    assert layer_records.forward_gains({"rows": rows}, "liger") == {}


def test_rates_of_a_layer_are_those_of_its_products_arithmetic():
    sizes = dict(k=2, H=1000, I=500)
    rows = [layer_row(1000, products_step=1e3, ours_step=2e3, graph_step=1.0, ours_forward=3e3) | sizes]
    assert layer_records.flops(rows[0], "forward") == 6_000_000_000
    assert layer_records.rates(rows, "step") == {"its products alone": {1000: 18.0}, "this library": {1000: 9.0}}
    assert layer_records.rates(rows, "forward") == {"this library": {1000: 2.0}}


def test_layers_beside_peers_are_over_transformers_and_as_called():
    rows = [
        layer_row(4096, transformers_step=12.0, liger_step=6.0, ours_step=4.0, graph_step=1.0, products_step=3.0),
        layer_row(1, "uniform", ours_step=4.0, products_step=3.0),
        layer_row(1, "uniform", transformers_step=2.0, ours_step=4.0),
    ]
    assert layer_records.beside_peers({"rows": rows}, "step") == {
        "a-3b, 4,096 tokens (Zipf)": {
            "its products alone": 4.0, "this library": 3.0, "Liger": 2.0, "transformers": 1.0
        },
        "a-3b, 1 token": {"this library": 0.5, "transformers": 1.0},
    }  # fmt: skip
    assert layer_records.beside_peers({"rows": rows}, "forward") == {}


def parallel_record(ranks=(2, 4), tokens=8192):
    """A made-up record, as ``benchmarks/expert_parallel.py`` writes it."""
    us = {
        "by hand, torch's products": 9.0, "by hand, our products": 8.0, "all_to_all": 5.0, "all_to_all, 2 chunks": 4.0,
        "symmetric": 3.0, "the layer alone, on the rows that arrive": 2.0, "one GPU, all experts, its tokens": 2.5,
        "symmetric, in a graph": 2.8, "all_to_all_single, equal splits of the deduplicated bytes": 0.5,
        "the layer alone, on the rows that arrive, in a graph": 1.9,
        "one GPU, all experts, its tokens, in a graph": 2.4,
    }  # fmt: skip
    simulated = dict(imbalance_of_choices=1.25, predicted_us=7000.0, both_us=None)
    models = ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3")
    return {"rows": [
        simulated | dict(
            ranks=p, model=model, tokens=tokens, routing=routing, way=way, forward_us=(1000 + i) * p * time
        )
        for p in ranks for i, model in enumerate(models) for routing in ("uniform", "zipf") for way, time in us.items()
    ]}  # fmt: skip


def test_times_of_several_gpus_are_those_of_a_layer():
    results = parallel_record()
    assert layer_records.parallel_times("mixtral-8x7b", 4, 8192, "zipf", results)["symmetric"] == 1001 * 4 * 3.0
    assert layer_records.parallel_times("qwen3-30b-a3b", 2, 8192, "uniform", results)["all_to_all, 2 chunks"] == 8000.0
    assert layer_records.parallel_times("qwen3-30b-a3b", 8, 8192, "uniform", results) == {}
    assert layer_records.parallel_times("qwen3-30b-a3b", 2, 1024, "uniform", results) == {}


def test_panels_of_several_gpus():
    results = parallel_record((4, 2))
    panels = layer_records.parallel_panels(8192, results)
    assert list(panels) == [
        f"{model}, {routing}" for model in ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3")
        for routing in ("uniform", "Zipf")
    ]  # fmt: skip
    two, four = panels["deepseek-v3, Zipf"].items()
    assert (two[0], four[0]) == ("2 GPUs", "4 GPUs")
    assert two[1] == {
        "by hand": 16032.0, "all_to_all": 10020.0, "overlapped": 8016.0, "symmetric": 6012.0, "no exchange": 4008.0
    }  # fmt: skip
    assert layer_records.parallel_panels(1024, results) == {}


def test_weak_scaling_is_over_one_gpu_with_all_experts():
    found = layer_records.weak_scaling("mixtral-8x7b", 8192, "zipf", "forward", parallel_record((4, 2)))
    assert found == {
        "by hand": {1: 1.0, 2: 2 * 2.5 / 8, 4: 4 * 2.5 / 8}, "all_to_all": {1: 1.0, 2: 1.0, 4: 2.0},
        "symmetric": pytest.approx({1: 1.0, 2: 2 * 2.5 / 3, 4: 4 * 2.5 / 3}),
        "symmetric, in a graph": pytest.approx({1: 1.0, 2: 2 * 2.4 / 2.8, 4: 4 * 2.4 / 2.8}),
    }  # fmt: skip
    assert list(found["by hand"]) == [1, 2, 4]
    assert layer_records.weak_scaling("mixtral-8x7b", 8192, "zipf", "step", parallel_record()) == {}, "not measured"


def test_several_gpus_without_a_record(monkeypatch):
    def missing(name):
        raise FileNotFoundError(name)

    monkeypatch.setattr(layer_records.record, "load", missing)
    assert layer_records.parallel_times("qwen3-30b-a3b", 2, 8, "zipf") == {}
    assert layer_records.parallel_panels(8) == {}


def lesson_16(shown: list) -> None:
    """Run its cells that read the record, after the cell that imports."""
    source = (ROOT / "notebooks" / "source" / "16_many_gpus.py").read_text(encoding="utf-8")
    imports, *cells = re.findall(r"^# %%(?: tags=.*)?\n((?:(?!# %%).*\n)+)", source, re.MULTILINE)
    names = {"__name__": "lesson"}
    exec(imports, names)
    names["display"] = shown.append
    for cell in cells:
        if "layer_records.parallel" in cell:
            exec(cell, names)
    shown.append(names["recorded"])


@pytest.mark.parametrize("name", layer_records.PARALLEL)
def test_lesson_16_reads_the_record(monkeypatch, tmp_path, capsys, name):
    rows = [row for tokens in (8192, 16384) for row in parallel_record(tokens=tokens)["rows"]]
    text = json.dumps(dict(provenance=dict(gpu="NVIDIA H100", date="2030-01-02T03", commit="abcdef1234"), rows=rows))
    (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    monkeypatch.setattr(layer_records.record, "RESULTS", tmp_path)
    lesson_16(shown := [])
    figure, recorded = shown
    assert recorded == {"by hand": 16000.0, "deduplicated": 10000.0}, "no record has the chunks that the model chooses"
    assert len(figure.axes) == 6
    printed = capsys.readouterr().out
    assert "recorded ways: by hand, deduplicated\n" in printed
    assert "recorded on NVIDIA H100, 2030-01-02, commit abcdef12\n" in printed
    assert printed.count("by hand takes 1.60 × as long as all_to_all, 2.67 × as long as symmetric") == 12
    assert "2 GPUs: 5.60 ms = 3.80 ms without exchange + 1.80 (all_to_all_single, there and back: 2.00)\n" in printed
    assert printed.endswith("recorded, Zipf: slowest rank 1.25 × the mean, 11.20 ms, 7.00 simulated\n")


def test_lesson_16_without_a_record(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(layer_records.record, "RESULTS", tmp_path)
    lesson_16(shown := [])
    assert shown == [{}]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 9
    assert all(line.endswith("not recorded yet") for line in printed), printed
