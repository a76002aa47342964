"""The record of the zoo: the compact set by all providers; ours has to be right."""

from __future__ import annotations

import pytest

import zoo_api
from bench_stand_ins import DECODE, TINY, Correct, measured_here, spoilt
from course_kernels.bench import providers as known
from course_kernels.bench import zoo


def test_the_record_has_gradients_steps_and_sources_and_refuses_wrong_results(monkeypatch):
    measured_here(monkeypatch)
    monkeypatch.setattr(zoo, "compact", lambda: [TINY, DECODE])
    monkeypatch.setattr(known, "zoo", lambda: [Correct(), known.Torch()])
    results = zoo_api.rows()
    for name in ("tiny", "tiny-decode"):
        assert list(results["rows"][name]["us"]) == ["forward", "dA", "dB", "step"]
    assert results["models"]["dbrx"].startswith("databricks/")
    monkeypatch.setattr(known, "zoo", lambda: [Correct(spoilt((0, 0), 9.0)), known.Torch()])
    with pytest.raises(AssertionError, match="tiny, mine, step: WrongResult: forward: "):
        zoo_api.rows()
