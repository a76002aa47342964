"""Numbers of lessons are computed from records as they say."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace

import pytest

from course_kernels.bench.rows import by_name
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, CuteConfig
from gemm_course.lessons import records
from places import ROOT


def test_program_times_pair_the_record_with_the_simulation():
    row = {"ours": {"2": 9.0, "4": 5.0}, "ours block": [32, 32, 32], "other": {"3": 1.0}}
    times = records.program_times(row, "ours", [(64, 64, 64)] * 2)
    assert times.recorded_us == {2: 9.0, 4: 5.0}
    assert times.tiles == 8
    assert list(times.simulated_us) == [2, 3, 4]
    assert times.simulated_us[2] > times.simulated_us[4] > 0


def test_ratios_are_those_of_the_rows_that_have_both():
    two = CuteConfig(128, 256, 64, 2, 4, COOPERATIVE)
    one = replace(two, cluster=1)
    us = {f"cute {one.name}": 30.0, f"cute {two.name}": 20.0}
    row = {"N": 256, "K": 512, "sizes": [3, 4], **{of: {"us": us} for of in ("forward", "dA", "dB")}}
    rows = {"a": row, "b": row | {"dA": {"us": {f"cute {one.name}": 5.0}}}, "c": {"K": 9}}
    assert records.ratios(rows, "dA", one, two) == [(256, 1.5)]
    assert [records.ratios({"a": row}, of, one, two)[0][0] for of in ("forward", "dB")] == [512, 3.5]


def test_a_step_has_the_fastest_of_our_kernels_and_the_copy_of_its_gradient():
    us = {
        of: {"a": {"median_us": 3.0}, "b": {"median_us": 2.0}, "peer": {"median_us": 1.0}} for of in ("forward", "dA")
    }
    row = {"title": "row", "sizes": [1, 2], "N": 100, "K": 1000, "us": us | {"dB": us["dA"]}}
    roles = {"a": {"role": "ours"}, "b": {"role": "ours"}, "c": {"role": "ours", "absent": "no"}, "peer": {"role": ""}}
    found = records.step_times({"providers": roles, "copy_tb_s": 0.4, "rows": {"r": row}})
    assert found == {"row": {"forward": 2.0, "dA": 2.0, "dB": 2.0, "copy": pytest.approx(2.0)}}


def test_gradients_are_named_by_model_and_router():
    entry = {"title": "Model: 8 over 2", "us": {"gradients": {"ptgmm": {"median_us": 2.5}}}}
    assert records.gradient_times({"rows": {"model-zipf": entry}}) == {"Model, Zipf": {"ptgmm": 2.5}}


def masked_record():
    """Two cells of 20 rows and one of 192; torch has no blocks."""
    rate = {"triton": {"tb_s": 4.0, "tflops": 80.0}, "torch.bmm, all rows": {"tb_s": 1.0, "tflops": 20.0}}
    kinds = {"bfloat16": {"rates": rate}, "float8 blocks": {"rates": {"triton": {"tb_s": 3.5, "tflops": 140.0}}}}
    shapes = ((20, 64), (20, 32), (192, 64))
    cells = {str(shape): {"groups": 32, "rows": shape[0], "N": shape[1], "K": 16, "kinds": kinds} for shape in shapes}
    return {"copy_tb_s": 4.25, "cells": cells}


def test_shares_of_a_copy_are_the_faster_kernels():
    record = masked_record()
    rates = {"triton": {"tb_s": 2.0}, "cute": {"tb_s": 2.125}, "torch.bmm, all rows": {"tb_s": 4.2}}
    clean = {"triton": {"tb_s": 4.25}}
    record["cells"] = {str(rows): {"rows": rows, "kinds": {"float8": {"rates": rates, "clean": {"rates": clean}}}}
                       for rows in (20, 192)}  # fmt: skip
    assert records.shares_of_a_copy(record, 20) == {"float8": [0.5]}
    assert records.shares_of_a_copy(record, 20, clean=True) == {"float8": [1.0]}


def test_a_record_has_its_fastest_dense_product_and_our_faster_kernel():
    us = {"triton": {"median_us": 3.0}, "cute": {"median_us": 2.0}, "loop": {"median_us": 1.0}}
    rows = {
        "a": {"rate": {"forward": {"dense": 7.0}}, "us": {"forward": us}},
        "b": {"rate": {"forward": {"cute": 9.0}}},
    }
    assert records.dense_tflops({"rows": rows}) == 7.0
    assert records.fastest_us({"rows": rows}, "a") == 2.0


ROWS = by_name()
PASSES = ("forward", "called", "dA", "dB")
TIMES = {  # µs in a graph; calls take 10 µs more
    "equal12": {"mine": 70.0, "torch": 84.0, "dense": 50.0},
    "decode32": {"mine": 240.0, "torch": 300.0},
}


def results():
    rows = {}
    for name, times in TIMES.items():
        row = ROWS[name]
        us = {of: {p: {"median_us": t + 10.0 * (of == "called")} for p, t in times.items()} for of in PASSES}
        us["dA"]["mine"]["median_us"] *= 2
        rows[name] = {
            "title": row.title, "kind": row.kind, "unit": row.unit, "flops": row.flops, "sizes": list(row.sizes),
            "N": row.N, "K": row.K, "bytes": {of: row.bytes_moved(of) for of in PASSES}, "us": us,
            "rate": {of: {p: row.rate(us[of][p]["median_us"], of) for p in times} for of in PASSES},
            "host_us": {"mine": 35.0, "torch": 168.0},
        }  # fmt: skip
    providers = {
        "mine": {"label": "grouped_mm", "role": "ours"},
        "torch": {"label": "torch", "role": "peer"},
        "dense": {"label": "dense", "role": "ceiling"},
    }
    return {"copy_tb_s": 4.0, "providers": providers, "rows": rows}


def test_time_is_explained_by_the_roof_the_tiles_and_the_last_wave():
    found = records.shares(results(), "mine", (128, 256), 132)["equal12"]
    assert found.bound == "arithmetic"
    # At the dense rate 50 of 70 µs. The twelve groups fill 6 row tiles each but for 85 or 86 rows; 8 columns.
    row = ROWS["equal12"]
    tiles = sum(-(-size // 128) for size in row.sizes) * 8
    hanging = tiles * 128 * 256 / (row.total_m * row.N)
    parts = list(found.parts.values())
    assert parts[0] == pytest.approx(50 / 70)
    assert parts[1] == pytest.approx(50 / 70 * (hanging - 1))
    wave = 50 / 70 * hanging * (-(-tiles // 132) * 132 / tiles - 1)
    assert parts[2] == pytest.approx(min(wave, 1 - parts[0] - parts[1]))
    assert sum(parts) == pytest.approx(1)


def test_a_memory_bound_row_is_explained_by_its_bytes_alone():
    found = records.shares(results(), "mine", (128, 256), 132)["decode32"]
    assert found.bound == "memory"
    share = ROWS["decode32"].bytes_moved() / 4.0 / 1e6 / 240.0
    assert list(found.parts.values()) == pytest.approx([share, 0, 0, 1 - share])


def test_a_row_above_the_roof_is_cut_at_all_of_its_time():
    fast = results()
    fast["rows"]["decode32"]["us"]["forward"]["mine"]["median_us"] = 1.0
    assert list(records.shares(fast, "mine", (128, 256), 132)["decode32"].parts.values()) == [1.0, 0, 0, 0]


def test_a_provider_that_was_not_measured_is_named():
    with pytest.raises(ValueError, match="'nobody' was not"):
        records.shares(results(), "nobody", (128, 256), 132)


def test_without_a_dense_product_there_is_no_explanation():
    record = copy.deepcopy(results())
    del record["rows"]["equal12"]["rate"]["forward"]["dense"]
    with pytest.raises(ValueError, match="dense"):
        records.shares(record, "mine", (128, 256), 132)


def test_ceiling_is_the_dense_product_or_a_copy():
    found = results()
    dense = found["rows"]["equal12"]["rate"]["forward"].pop("dense")
    assert records.ceiling(results(), "equal12") == records.ceiling(results(), "equal12", "called") == dense
    assert records.ceiling(found, "equal12") is None
    assert records.ceiling(found, "decode32") == 4.0


def test_recorded_times_have_the_titles_of_their_rows():
    rows = {"a": {"title": "A", "us": {"forward": {"cublas": {"median_us": 2.5}}}}}
    assert records.jagged_times(rows) == {"A": {"cublas": 2.5}}


def layer_row(tokens, routing="zipf", model="a-3b", **us):
    return {"model": model, "tokens": tokens, "routing": routing, "us": {k.replace("_", " "): v for k, v in us.items()}}


def test_rows_of_a_layer_are_those_of_the_model_by_tokens():
    rows = [layer_row(64), layer_row(8, model="b"), layer_row(1)]
    assert records.layer_rows("a-3b", {"rows": rows}) == [rows[2], rows[0]]
    assert records.layer_rows("c", {"rows": rows}) == []


def test_without_a_record_of_the_layer_there_are_no_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(records.record, "RESULTS", tmp_path)
    assert records.layer_rows("a-3b") == []
    assert records.layer_gains([]) == records.layer_overheads([], "step") == {}


def test_gains_of_a_layer_are_by_routing():
    rows = [
        layer_row(1, ours_forward=5.0), layer_row(64, transformers_forward=12.0, ours_forward=10.0, graph_forward=1.0),
        layer_row(64, "uniform", transformers_forward=9.0, ours_forward=6.0),
        layer_row(4096, transformers_forward=40.0, ours_forward=20.0),
    ]  # fmt: skip
    assert records.layer_gains(rows) == {"Zipf, recorded": {64: 1.2, 4096: 2.0}, "uniform, recorded": {64: 1.5}}


def test_overheads_of_a_layer_are_over_its_own_products():
    rows = [
        layer_row(
            64, products_step=10.0, graph_step=12.0, ours_step=99.0, transformers_step=20.0, products_forward=4.0
        ),
        layer_row(4096, products_step=100.0, graph_step=110.0, liger_step=150.0, graph_forward=5.0),
    ]
    assert records.layer_overheads(rows, "step") == {
        "fifteen operations": {64: 2.0}, "this library": {64: 1.2, 4096: 1.1}, "Liger": {4096: 1.5},
    }  # fmt: skip


def test_rates_of_a_layer_are_those_of_its_products_arithmetic():
    sizes = dict(k=2, H=1000, I=500)
    rows = [layer_row(1000, products_step=1e3, ours_step=2e3, graph_step=1.0, ours_forward=3e3) | sizes]
    assert records.layer_flops(rows[0], "forward") == 6_000_000_000
    assert records.layer_rates(rows, "step") == {"its products alone": {1000: 18.0}, "this library": {1000: 9.0}}
    assert records.layer_rates(rows, "forward") == {"this library": {1000: 2.0}}


def test_layers_beside_peers_are_over_transformers_and_as_called():
    rows = [
        layer_row(4096, transformers_step=12.0, liger_step=6.0, ours_step=4.0, graph_step=1.0, products_step=3.0),
        layer_row(1, "uniform", ours_step=4.0, products_step=3.0),
        layer_row(1, "uniform", transformers_step=2.0, ours_step=4.0),
    ]
    assert records.layers_beside_peers({"rows": rows}, "step") == {
        "a-3b, 4,096 tokens (Zipf)": {
            "its products alone": 4.0, "this library": 3.0, "Liger": 2.0, "transformers": 1.0
        },
        "a-3b, 1 token": {"this library": 0.5, "transformers": 1.0},
    }  # fmt: skip
    assert records.layers_beside_peers({"rows": rows}, "forward") == {}


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
    assert records.parallel_times("mixtral-8x7b", 4, 8192, "zipf", results)["symmetric"] == 1001 * 4 * 3.0
    assert records.parallel_times("qwen3-30b-a3b", 2, 8192, "uniform", results)["all_to_all, 2 chunks"] == 8000.0
    assert records.parallel_times("qwen3-30b-a3b", 8, 8192, "uniform", results) == {}
    assert records.parallel_times("qwen3-30b-a3b", 2, 1024, "uniform", results) == {}


def test_panels_of_several_gpus():
    results = parallel_record((4, 2))
    panels = records.parallel_panels(8192, results)
    assert list(panels) == [
        f"{model}, {routing}" for model in ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3")
        for routing in ("uniform", "Zipf")
    ]  # fmt: skip
    two, four = panels["deepseek-v3, Zipf"].items()
    assert (two[0], four[0]) == ("2 GPUs", "4 GPUs")
    assert two[1] == {
        "by hand": 16032.0, "all_to_all": 10020.0, "overlapped": 8016.0, "symmetric": 6012.0, "no exchange": 4008.0
    }  # fmt: skip
    assert records.parallel_panels(1024, results) == {}


def test_weak_scaling_is_over_one_gpu_with_all_experts():
    found = records.weak_scaling("mixtral-8x7b", 8192, "zipf", "forward", parallel_record((4, 2)))
    assert found == {
        "by hand": {1: 1.0, 2: 2 * 2.5 / 8, 4: 4 * 2.5 / 8}, "all_to_all": {1: 1.0, 2: 1.0, 4: 2.0},
        "symmetric": pytest.approx({1: 1.0, 2: 2 * 2.5 / 3, 4: 4 * 2.5 / 3}),
        "symmetric, in a graph": pytest.approx({1: 1.0, 2: 2 * 2.4 / 2.8, 4: 4 * 2.4 / 2.8}),
    }  # fmt: skip
    assert list(found["by hand"]) == [1, 2, 4]
    assert records.weak_scaling("mixtral-8x7b", 8192, "zipf", "step", parallel_record()) == {}, "not measured"


def test_several_gpus_without_a_record(monkeypatch):
    def missing(name):
        raise FileNotFoundError(name)

    monkeypatch.setattr(records.record, "load", missing)
    assert records.parallel_times("qwen3-30b-a3b", 2, 8, "zipf") == {}
    assert records.parallel_panels(8) == {}


def lesson_16(shown: list) -> None:
    """Run its cells that read the record, after the cell that imports."""
    source = (ROOT / "notebooks" / "source" / "16_many_gpus.py").read_text(encoding="utf-8")
    imports, *cells = re.findall(r"^# %%(?: tags=.*)?\n((?:(?!# %%).*\n)+)", source, re.MULTILINE)
    names = {"__name__": "lesson"}
    exec(imports, names)
    names["display"] = shown.append
    for cell in cells:
        if "records.parallel" in cell:
            exec(cell, names)
    shown.append(names["recorded"])


@pytest.mark.parametrize("name", ["expert_parallel", "expert_parallel_h100"])
def test_lesson_16_reads_the_record(monkeypatch, tmp_path, capsys, name):
    rows = [row for tokens in (8192, 16384) for row in parallel_record(tokens=tokens)["rows"]]
    text = json.dumps(dict(provenance=dict(gpu="NVIDIA H100"), rows=rows))
    (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    monkeypatch.setattr(records.record, "RESULTS", tmp_path)
    lesson_16(shown := [])
    figure, recorded = shown
    assert recorded == {"by hand": 16000.0, "deduplicated": 10000.0}, "no record has the chunks that the model chooses"
    assert len(figure.axes) == 6
    printed = capsys.readouterr().out
    assert "recorded ways: by hand, deduplicated\n" in printed
    assert "recorded on NVIDIA H100\n" in printed
    assert printed.count("symmetric is 2.67 times as fast as by hand") == 12
    assert "2 GPUs: 5.60 ms = 3.80 ms without exchange + 1.80 (all_to_all_single, there and back: 2.00)\n" in printed
    assert printed.endswith("recorded, Zipf: most over mean 1.25, 11.20 ms, 7.00 simulated\n")


def test_lesson_16_without_a_record(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(records.record, "RESULTS", tmp_path)
    lesson_16(shown := [])
    assert shown == [{}]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 8
    assert all(line.endswith("not recorded yet") for line in printed), printed
