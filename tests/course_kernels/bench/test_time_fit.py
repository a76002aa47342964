"""Constants that made times are found again, and what is fitted is what the library computes."""

from __future__ import annotations

import json
import math
import random
import statistics

import pytest
import torch

from course_kernels.bench import candidates, time_fit
from course_kernels.engine.tuning import time_model
from tuner_stand_in import PROVENANCE

GPU = time_model.Gpu("sm_90", 132, 4.8)
NAMES = ["cute 128x128x64_2_6_pingpong_8_halved", "triton 16_128_128_4_4_1_1_1"]
TRUE = {NAMES[0]: (0.4, 0.3, 0.5, 0.85, 4.0, 8.0), NAMES[1]: (0.6, 0.1, 0.4, 0.9, 3.0, 7.0)}


def expected_us(constants, config, kind, *extents):
    """The mean over the spreads of groups, as the library has it."""
    parts = [time_model.work(config, kind, *extents, spread) for spread in time_model.SPREADS]
    return sum(time_model.seconds(constants, each, 132, GPU.bandwidth) for each in parts) / len(parts)


@pytest.fixture(scope="module")
def made():
    """Times that the model itself gives with known constants, of three models and some random rows."""
    configs, found = candidates.by_name("m,k"), []
    for i in range(40):
        extents = (float(2 ** (i % 11)), 512 * (1 + i % 7), 768 * (1 + i % 5), (8, 32, 128)[i % 3])
        us = {}
        for name, constants in TRUE.items():
            us[name] = expected_us(constants, configs[name], "m,k", *extents)
        source = f"random-{i}" if i % 4 == 0 else "abc"[i % 3]
        found.append(time_fit.Sample(source, f"{i} forward", "m,k", extents, us))
    return found


@pytest.fixture(scope="module")
def fitted(made):
    return time_fit.fit(made, GPU, ["m,k"])


def test_times_are_found_again(made, fitted):
    assert len(fitted["m,k"]) == 2
    for sample in made:
        for candidate in fitted["m,k"]:
            us = sample.us[candidates.name_of(candidate.config)]
            assert time_model.estimate(candidate, "m,k", *sample.extents, GPU) == pytest.approx(us, rel=0.06)


def test_what_is_fitted_is_what_the_library_computes(made):
    config = candidates.by_name("m,k")[NAMES[0]]
    rows = time_fit.rows_of(config, NAMES[0], made)
    free = torch.tensor([-1.0, -0.7, 0.3, -0.2, 0.9, 1.8], dtype=torch.float64)
    constants = tuple(value.item() for value in time_fit.positive(free))
    at_once = time_fit.predicted(torch.stack([free + 1, free]), rows, 132, 4.8)[1].tolist()
    one_by_one = [expected_us(constants, config, "m,k", *sample.extents) for sample in made]
    assert at_once == pytest.approx(one_by_one, rel=1e-9)


def test_a_choice_is_judged_by_what_was_measured(made, fitted):
    judged = time_fit.regret(made, fitted, GPU)
    assert len(judged) == len(made)
    for each, sample in zip(judged, made):
        assert each.times == pytest.approx(sample.us[each.chosen] / min(sample.us.values()), abs=1e-4)
        assert sample.us[each.best] == min(sample.us.values())
    assert time_fit.summary(judged).startswith("40 products, mean 1.0")


def test_a_model_is_judged_without_its_own_rows(made, monkeypatch):
    asked, fit = [], time_fit.fit

    def watched(found, gpu, kinds):
        asked.append({sample.source for sample in found})
        return fit(found, gpu, kinds)

    monkeypatch.setattr(time_fit, "fit", watched)
    monkeypatch.setattr(time_fit, "STEPS", 3)
    judged = time_fit.leave_one_out(made, GPU)
    assert len(judged) == sum(not sample.source.startswith("random") for sample in made)
    assert sorted(next(iter(set("abc") - sources)) for sources in asked) == ["a", "b", "c"]
    assert all(sources > {"random-0"} for sources in asked)


def test_few_measurements_are_not_fitted(made):
    assert time_fit.fit(made[:5], GPU, ["m,k"]) == {"m,k": ()}
    assert time_fit.regret(made[:2], {"m,k": ()}, GPU) == []


def test_passes_become_kinds_and_averages():
    entry = {"sizes": [3, 5], "N": 16, "K": 32, **{name: {"us": {"x": 1.0}} for name in ("forward", "dA", "dB")}}
    found = time_fit.samples({"row": entry, "empty": {"sizes": [1], "N": 1, "K": 1}}, {"row": "model"})
    extents = {sample.kind: sample.extents for sample in found}
    assert extents == {"m,k": (4.0, 16, 32, 2), "m,n": (4.0, 32, 16, 2), "k,n": (16, 32, 4.0, 2)}
    assert {sample.source for sample in found} == {"model"}
    assert math.isclose(found[0].us["x"], 1.0)


def test_passes_of_8_bits_have_kinds_of_their_own():
    entry = {"sizes": [3, 5], "N": 16, "K": 32} | {name: {"us": {"x": 1.0}} for name in candidates.PASSES_8_BIT}
    found = time_fit.samples({"row": entry}, {})
    assert {sample.kind: sample.extents for sample in found} == {
        f"m,{major} fp8{blocks}": (4.0, *extents, 2)
        for major, extents in (("k", (16, 32)), ("n", (32, 16)))
        for blocks in ("", " blocks")
    }


def true_us(config, kind, *extents):
    """Times of all configurations: blocks take as long as their area, by one constant, and each has a launch of its own
    length."""
    area = (config.tile_m * config.tile_n * config.tile_k) if hasattr(config, "tile_m") else math.prod(config.block)
    slower = 1.0 if hasattr(config, "tile_m") else 1.5
    constants = (slower * area * 2e-7, 0.2, 0.5, 0.85, 4.0, 5.0 + area % 7)
    return expected_us(constants, config, kind, *extents)


def stand_in(rows, passes, seconds=0.0, tell=print):
    """A measurement by ``true_us``; one configuration fails on one row."""
    found = {}
    for row in rows:
        entry = found[row.name] = {"title": row.title, "sizes": list(row.sizes), "N": row.N, "K": row.K}
        for pass_name in passes:
            kind, rows_of = candidates.KIND_OF_PASS[pass_name], row.total_m / row.groups
            N, K = (row.N, row.K) if pass_name.startswith("forward") else (row.K, row.N)
            extents = (row.N, row.K, rows_of, row.groups) if kind == "k,n" else (rows_of, N, K, row.groups)
            us = {name: true_us(config, kind, *extents) for name, config in candidates.by_name(kind).items()}
            entry[pass_name] = {"us": us, "failed": {}}
    entry[pass_name]["failed"]["bad"] = "ValueError: on purpose"
    return found


@pytest.fixture
def measured(monkeypatch):
    """``candidates.measure`` with times of the model, on as many rows as it says."""
    shapes = time_fit.compact_rows()
    rows = [row for row in shapes if row.name.startswith(("random", "granite", "mixtral"))]
    monkeypatch.setattr(time_fit, "compact_rows", lambda: rows)
    monkeypatch.setattr(time_fit, "STEPS", 4)
    monkeypatch.setattr(candidates, "compile_ahead", lambda rows, passes, tell: tell(f"{len(rows)} ahead"))
    monkeypatch.setattr(candidates, "measure", stand_in)
    return rows


def test_tuning_measures_fits_and_writes_what_the_library_asks(measured, monkeypatch, tmp_path):
    monkeypatch.setattr(time_model, "CONSTANTS", tmp_path)
    out, record, told = time_model.file_of("NVIDIA H20"), tmp_path / "record", []
    gpu = time_model.Gpu("sm_90", 132, 4.0)
    failed = time_fit.tune(out, gpu, PROVENANCE, record=record, tell=told.append)
    assert out == tmp_path / "h20.json"
    try:
        for kind in (*time_model.KINDS, *time_model.KINDS_8_BIT):
            assert time_model.fastest(kind, 256.0, 2048, 2048, 64, GPU), kind
    finally:
        monkeypatch.undo()
        time_model.forget()
    assert list(failed.values()) == [{"bad": "ValueError: on purpose"}]
    assert json.loads(out.read_text())["provenance"] == PROVENANCE
    assert set(json.loads(record.read_text())["rows"]) == {row.name for row in measured}
    assert told[0] == f"{len(measured)} ahead"
    assert told[1].startswith(f"{len(measured)} of {len(measured)} rows measured in ")
    assert any(line.startswith("no GPU, left out, m,n fp8 blocks: 12 products, mean ") for line in told)


def test_too_few_rows_leave_the_file_as_it_was(measured, monkeypatch, tmp_path):
    out = tmp_path / "h200.json"
    out.write_text("as it was")
    monkeypatch.setattr(candidates, "measure", lambda rows, passes, seconds, tell: stand_in(rows[:5], passes))
    with pytest.raises(ValueError, match="5 rows are too few to fit m,k, m,n, k,n: 12 of each configuration"):
        time_fit.tune(out, GPU, PROVENANCE, tell=lambda line: None)
    assert out.read_text() == "as it was"


def test_rows_of_tuning_are_of_models_and_of_none():
    rows = time_fit.compact_rows()
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    models = {source for name, source in time_fit.sources(names).items() if name != source}
    assert len(models) == 5
    random = [name for name in names if name.startswith("random")]
    assert len(random) > 30
    assert any(row.groups == 1 for row in rows)
    assert names.index(random[0]) < 10, "in a drawn order, so that a short time leaves out some of each"


def test_what_the_configurations_of_a_product_have_in_common_is_not_fitted(made):
    """Products that take longer, all configurations alike, leave the ratios of two configurations as they were."""
    draw, found = random.Random(0), []
    for sample in made:
        longer = math.exp(draw.gauss(0.0, 0.5))
        found.append(sample._replace(us={name: us * longer for name, us in sample.us.items()}))
    pair = sorted(
        time_fit.fit(found, GPU, ["m,k"])["m,k"], key=lambda each: NAMES.index(candidates.name_of(each.config))
    )
    off = []
    for sample in made:
        first, second = (time_model.estimate(each, "m,k", *sample.extents, GPU) for each in pair)
        off.append(abs(math.log(first / second * sample.us[NAMES[1]] / sample.us[NAMES[0]])))
    assert statistics.mean(off) < 0.06, "0.04 as it is, 0.08 if the common part stays in"


def test_a_configuration_that_is_far_behind_counts_little(made):
    rows = time_fit.rows_of(candidates.by_name("m,k")[NAMES[0]], NAMES[0], made)
    times = [sample.us[NAMES[0]] / min(sample.us.values()) for sample in made]
    assert rows.weights.tolist() == pytest.approx([ratio**-3 for ratio in times])
    assert max(times) > 1.2
    assert rows.weights.min() < 0.6
