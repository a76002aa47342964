"""What `course tune` measures, and the file that it writes."""

from __future__ import annotations

import json
import math

import pytest

from course_kernels.bench.tuning import config_times, fit, tune
from course_kernels.engine.tuning import Extents, Gpu, Kind, gpu_constants, time_model
from course_kernels.engine.tuning.configs_by_kind import by_name, offered
from course_kernels.engine.tuning.gpu_constants import Constants
from course_kernels.engine.tuning.kinds import KINDS, KINDS_8_BIT, KINDS_OF_LAYER
from tuning_shapes import PROVENANCE

GPU = Gpu("sm_90", 132, 4.8)


def expected_us(constants, config, kind, extents):
    """The mean over the spreads of groups, as the library has it."""
    parts = [time_model.work(config, kind, extents, spread) for spread in time_model.SPREADS]
    return sum(time_model.seconds(constants, each, 132, GPU.bandwidth) for each in parts) / len(parts)


def true_us(config, kind, extents):
    """Times of all configurations: blocks take as long as their area, by one constant, and each has a launch of its own
    length."""
    area = (config.tile_m * config.tile_n * config.tile_k) if hasattr(config, "tile_m") else math.prod(config.block)
    slower = 1.0 if hasattr(config, "tile_m") else 1.5
    constants = Constants(slower * area * 2e-7, 0.2, 0.5, 0.85, 4.0, 5.0 + area % 7)
    return expected_us(constants, config, kind, extents)


def stand_in(rows, passes, seconds, among, tell):
    """A measurement by ``true_us``; one configuration fails on one row."""
    found = {}
    for row in rows:
        entry = found[row.name] = {"title": row.title, "sizes": list(row.sizes), "N": row.N, "K": row.K}
        for pass_name in passes:
            kind, rows_of = config_times.KIND_OF_PASS[pass_name], row.total_m / row.groups
            N, K = (row.N, row.K) if pass_name.startswith("forward") else (row.K, row.N)
            extents = Extents(
                *(row.N, row.K, rows_of, row.groups) if kind.along == "k" else (rows_of, N, K, row.groups)
            )
            us = {name: true_us(each, kind, extents) for name, each in by_name(kind).items() if each in among[kind]}
            entry[pass_name] = {"us": us, "failed": {}}
    entry[pass_name]["failed"]["bad"] = "ValueError: on purpose"
    return found


@pytest.fixture
def few_rows(monkeypatch):
    """``config_times.measure`` with times of the model, on as many rows as it says."""
    shapes = tune.compact_rows()
    rows = [row for row in shapes if row.name.startswith(("random", "granite", "mixtral"))]
    monkeypatch.setattr(tune, "compact_rows", lambda: rows)
    monkeypatch.setattr(fit, "STEPS", 4)
    monkeypatch.setattr(config_times, "compile_ahead", lambda rows, passes, among, tell: tell(f"{len(rows)} ahead"))
    monkeypatch.setattr(
        config_times, "here", lambda only: {k: offered(k, GPU, only) for k in config_times.KIND_OF_PASS.values()}
    )
    monkeypatch.setattr(config_times, "measure", stand_in)
    return rows


def test_tuning_measures_fits_and_writes_what_the_library_asks(few_rows, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_constants, "CONSTANTS", tmp_path)
    out, record, told = gpu_constants.file_of("NVIDIA H20"), tmp_path / "record", []
    gpu = Gpu("sm_90", 132, 4.0)
    failed = tune.tune(out, gpu, PROVENANCE, record=record, tell=told.append)
    assert out == tmp_path / "h20.json"
    try:
        for kind in (*KINDS, *KINDS_8_BIT, *KINDS_OF_LAYER):
            assert time_model.fastest(kind, Extents(256.0, 2048, 2048, 64), GPU), kind
            assert gpu_constants.source_for(GPU, kind).kind == kind
    finally:
        monkeypatch.undo()
        time_model.forget()
    assert list(failed.values()) == [{"bad": "ValueError: on purpose"}]
    assert json.loads(out.read_text())["provenance"] == PROVENANCE
    assert set(json.loads(record.read_text())["rows"]) == {row.name for row in few_rows}
    assert told[0] == f"{len(few_rows)} ahead"
    assert told[1].startswith("compiled in ")
    assert told[2].startswith(f"{len(few_rows)} of {len(few_rows)} rows measured, ")
    assert any(line.startswith("no GPU, left out, m,n fp8 blocks: 12 products, mean ") for line in told)


def test_too_few_rows_leave_the_file_as_it_was(few_rows, monkeypatch, tmp_path):
    out = tmp_path / "h200.json"
    out.write_text("as it was")
    monkeypatch.setattr(config_times, "measure", lambda rows, *rest, **others: stand_in(rows[:5], *rest, **others))
    with pytest.raises(ValueError, match="5 rows are too few to fit m,k, m,n, k,n: 12 of each configuration"):
        tune.tune(out, GPU, PROVENANCE, tell=lambda line: None)
    assert out.read_text() == "as it was"


def test_rows_of_tuning_are_of_models_and_of_none():
    rows = tune.compact_rows()
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    models = {source for name, source in tune.sources(names).items() if name != source}
    assert len(models) == 5
    random = [name for name in names if name.startswith("random")]
    assert len(random) > 30
    assert any(row.groups == 1 for row in rows)
    assert names.index(random[0]) < 10, "in a drawn order, so that a short time leaves out some of each"


def test_without_the_kernel_in_cute_dsl_constants_are_of_triton_alone(few_rows, tmp_path):
    out = tmp_path / "triton.json"
    tune.tune(out, GPU, PROVENANCE, triton_only=True, tell=lambda line: None)
    found = gpu_constants.read(out).candidates
    assert {each.backend for kind in found for each in found[kind]} == {"triton"}
    assert set(found) == {*KINDS, *KINDS_8_BIT}
    ratios = tune.compared([], found, found, GPU)
    assert ratios == {}


def test_choices_are_compared_on_what_was_measured(few_rows, tmp_path):
    """On times that the model itself made, constants choose what the true ones choose, and no wrong ones do."""
    content = stand_in(few_rows, ("forward",), 0.0, config_times.here(True), None)
    found = fit.samples(content, tune.sources(content))
    fitted = fit.fit(found, GPU)
    (ratios,) = tune.compared(found, fitted, fitted, GPU).values()
    assert set(ratios) == {1.0}
    wrong = [each._replace(constants=each.constants._replace(block_us=1.0)) for each in fitted[Kind("m")]]
    (ratios,) = tune.compared(found, {Kind("m"): wrong}, fitted, GPU).values()
    assert math.prod(ratios) > 1.0
    assert tune.compared_in_words({Kind("m"): [1.0, 1.21]}) == "m,k: 2 products, mean 1.1000, worst 1.210, best 1.000"
