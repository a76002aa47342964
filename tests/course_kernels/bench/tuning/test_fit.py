"""Constants that made times are found again, and what is fitted is what the library computes."""

from __future__ import annotations

import math
import random
import statistics

import pytest
import torch

from course_kernels.bench.tuning import config_times
from course_kernels.bench.tuning import fit as fitting
from course_kernels.engine.tuning import Extents, Gpu, Kind, time_model
from course_kernels.engine.tuning.configs_by_kind import by_name, name_of
from course_kernels.engine.tuning.gpu_constants import Constants

FORWARD, GPU = Kind("m", "k"), Gpu("sm_90", 132, 4.8)
NAMES = ["cute 128x128x64_2_6_pingpong_8_halved", "triton 16_128_128_4_4_1_1_1"]
TRUE = {NAMES[0]: Constants(0.4, 0.3, 0.5, 0.85, 4.0, 8.0), NAMES[1]: Constants(0.6, 0.1, 0.4, 0.9, 3.0, 7.0)}


def expected_us(constants, config, kind, extents):
    """The mean over the spreads of groups, as the library has it."""
    parts = [time_model.work(config, kind, extents, spread) for spread in time_model.SPREADS]
    return sum(time_model.seconds(constants, each, 132, GPU.bandwidth) for each in parts) / len(parts)


@pytest.fixture(scope="module")
def made():
    """Times that the model itself gives with known constants, of three models and some random rows."""
    configs, found = by_name(FORWARD), []
    for i in range(40):
        extents = Extents(float(2 ** (i % 11)), 512 * (1 + i % 7), 768 * (1 + i % 5), (8, 32, 128)[i % 3])
        us = {}
        for name, constants in TRUE.items():
            us[name] = expected_us(constants, configs[name], FORWARD, extents)
        source = f"random-{i}" if i % 4 == 0 else "abc"[i % 3]
        found.append(fitting.Sample(source, f"{i} forward", FORWARD, extents, us))
    return found


@pytest.fixture(scope="module")
def fitted(made):
    return fitting.fit(made, GPU, [FORWARD])


def test_times_are_found_again(made, fitted):
    assert len(fitted[FORWARD]) == 2
    for sample in made:
        for candidate in fitted[FORWARD]:
            us = sample.us[name_of(candidate.config)]
            assert time_model.estimate(candidate, FORWARD, sample.extents, GPU) == pytest.approx(us, rel=0.06)


def test_what_is_fitted_is_what_the_library_computes(made):
    config = by_name(FORWARD)[NAMES[0]]
    rows = fitting.rows_of(config, NAMES[0], made)
    free = torch.tensor([-1.0, -0.7, 0.3, -0.2, 0.9, 1.8], dtype=torch.float64)
    constants = Constants(*(value.item() for value in fitting.positive(free)))
    at_once = fitting.predicted(torch.stack([free + 1, free]), rows, 132, 4.8)[1].tolist()
    one_by_one = [expected_us(constants, config, FORWARD, sample.extents) for sample in made]
    assert at_once == pytest.approx(one_by_one, rel=1e-9)


def test_a_choice_is_judged_by_what_was_measured(made, fitted):
    judged = fitting.regret(made, fitted, GPU)
    assert len(judged) == len(made)
    for each, sample in zip(judged, made):
        assert each.times == pytest.approx(sample.us[each.chosen] / min(sample.us.values()), abs=1e-4)
        assert sample.us[each.best] == min(sample.us.values())
    assert fitting.summary(judged).startswith("40 products, mean 1.0")


def test_a_model_is_judged_without_its_own_rows(made, monkeypatch):
    asked, fit = [], fitting.fit

    def watched(found, gpu, kinds):
        asked.append({sample.source for sample in found})
        return fit(found, gpu, kinds)

    monkeypatch.setattr(fitting, "fit", watched)
    monkeypatch.setattr(fitting, "STEPS", 3)
    judged = fitting.leave_one_out(made, GPU)
    assert len(judged) == sum(not sample.source.startswith("random") for sample in made)
    assert sorted(next(iter(set("abc") - sources)) for sources in asked) == ["a", "b", "c"]
    assert all(sources > {"random-0"} for sources in asked)


def test_few_measurements_are_not_fitted(made):
    assert fitting.fit(made[:5], GPU, [FORWARD]) == {FORWARD: ()}
    assert fitting.regret(made[:2], {FORWARD: ()}, GPU) == []


def test_passes_become_kinds_and_averages():
    entry = {"sizes": [3, 5], "N": 16, "K": 32, **{name: {"us": {"x": 1.0}} for name in ("forward", "dA", "dB")}}
    found = fitting.samples({"row": entry, "empty": {"sizes": [1], "N": 1, "K": 1}}, {"row": "model"})
    extents = {str(sample.kind): sample.extents for sample in found}
    assert extents == {"m,k": (4.0, 16, 32, 2), "m,n": (4.0, 32, 16, 2), "k,n": (16, 32, 4.0, 2)}
    assert {sample.source for sample in found} == {"model"}
    assert math.isclose(found[0].us["x"], 1.0)


def test_passes_of_8_bits_have_kinds_of_their_own():
    entry = {"sizes": [3, 5], "N": 16, "K": 32} | {name: {"us": {"x": 1.0}} for name in config_times.PASSES_8_BIT}
    found = fitting.samples({"row": entry}, {})
    assert {str(sample.kind): sample.extents for sample in found} == {
        f"m,{major} fp8{blocks}": (4.0, *extents, 2)
        for major, extents in (("k", (16, 32)), ("n", (32, 16)))
        for blocks in ("", " blocks")
    }


def test_what_the_configurations_of_a_product_have_in_common_is_not_fitted(made):
    """Products that take longer, all configurations alike, leave the ratios of two configurations as they were."""
    draw, found = random.Random(0), []
    for sample in made:
        longer = math.exp(draw.gauss(0.0, 0.5))
        found.append(sample._replace(us={name: us * longer for name, us in sample.us.items()}))
    pair = sorted(fitting.fit(found, GPU, [FORWARD])[FORWARD], key=lambda each: NAMES.index(name_of(each.config)))
    off = []
    for sample in made:
        first, second = (time_model.estimate(each, FORWARD, sample.extents, GPU) for each in pair)
        off.append(abs(math.log(first / second * sample.us[NAMES[1]] / sample.us[NAMES[0]])))
    assert statistics.mean(off) < 0.06, "0.04 as it is, 0.08 if the common part stays in"


def test_a_configuration_that_is_far_behind_counts_little(made):
    rows = fitting.rows_of(by_name(FORWARD)[NAMES[0]], NAMES[0], made)
    times = [sample.us[NAMES[0]] / min(sample.us.values()) for sample in made]
    assert rows.weights.tolist() == pytest.approx([ratio**-3 for ratio in times])
    assert max(times) > 1.2
    assert rows.weights.min() < 0.6
