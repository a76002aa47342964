"""The record of products with a shared B: all rows by all providers; ours has to be right."""

from __future__ import annotations

import pytest

import jagged_api
from bench_stand_ins import Correct, measured_here, spoilt
from course_kernels.bench import jagged


@pytest.fixture
def on_a_gpu(monkeypatch):
    measured_here(monkeypatch, {"mine": 8.0, "cublas": 6.0})

    def prepare(providers):
        monkeypatch.setattr(jagged, "rows", lambda: [jagged.SharedRow("tiny", "", (8, 0, 9), 16, 24, "compute")])
        monkeypatch.setattr(jagged, "providers", lambda: providers)

    return prepare


def test_the_record_has_shares_of_the_dense_product(on_a_gpu):
    on_a_gpu([Correct(), jagged.Cublas()])
    results = jagged_api.rows()
    assert set(results["rows"]["tiny"]["us"]["called"]) == {"mine", "cublas"}
    assert results["of_dense"] == {"tiny": {"mine": 0.75}}
    on_a_gpu([Correct()])
    assert jagged_api.rows()["of_dense"] == {}


def test_the_record_refuses_wrong_results_of_ours(on_a_gpu):
    on_a_gpu([Correct(spoilt((0, 0), 9.0)), jagged.Cublas()])
    with pytest.raises(AssertionError, match="tiny, mine, forward: WrongResult"):
        jagged_api.rows()
