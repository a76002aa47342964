"""Numbers of lessons are computed from records as they say."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from course_kernels.bench.rows import by_name
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, CuteConfig
from gemm_course.lessons import records


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
