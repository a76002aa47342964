"""Every configuration is measured on shapes it may serve, and compared with the product."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_kernels.bench import candidates, timing
from course_kernels.bench.interface import make_operands
from course_kernels.bench.rows import Row
from course_kernels.packed.backends import cute
from course_kernels.packed.tuning import time_model

ROW = Row("small", "3 experts, N 64, K 48", (20, 0, 30), 64, 48, "compute")


def test_names_tell_configurations_apart():
    for kind in time_model.KINDS:
        found = candidates.by_name(kind)
        assert len(found) == len(set(found.values()))
        assert {name.split()[0] for name in found} == {"cute", "triton"}


def test_random_rows_are_the_same_everywhere_and_not_too_large():
    found = candidates.random_rows(20)
    assert [row.sizes for row in found] == [row.sizes for row in candidates.random_rows(20)]
    assert all(0 < row.flops <= 2e12 and row.N % 8 == row.K % 8 == 0 for row in found)


@pytest.fixture
def on_a_cpu(monkeypatch):
    """Kernels, graphs and clocks of the measurement, with torch's products."""

    def multiply(operands, out, variant, config):
        mat_a, mat_b, offs, *_ = operands
        starts = [0, *offs.tolist()]
        for g, (start, end) in enumerate(itertools.pairwise(starts)):
            if mat_b.dim() == 3:
                out[start:end] = (mat_a[start:end].float() @ mat_b[g].float()).to(out.dtype)
            else:
                out[g] = (mat_a[:, start:end].float() @ mat_b[start:end].float()).to(out.dtype)

    def called(mat_a, mat_b, offs, out, backend, config):
        multiply((mat_a, mat_b, offs), out, None, config)
        return out

    class Replayed:
        def __init__(self, function):
            self.replay = function

    monkeypatch.setattr(candidates, "DEVICE", "cpu")
    monkeypatch.setattr(cute, "multiply", multiply)
    monkeypatch.setattr(candidates, "grouped_mm", called)
    monkeypatch.setattr(timing, "capture", lambda function, warmups: Replayed(function))
    monkeypatch.setattr(timing, "interleaved_us", lambda graphs, repeats: {name: [2.0, 1.0, 3.0] for name in graphs})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return multiply


def test_all_that_suit_are_measured(on_a_cpu, capsys):
    entry = candidates.measure([ROW])["small"]
    for pass_name, kind in candidates.KIND_OF_PASS.items():
        suited = {name for name, config in candidates.by_name(kind).items() if time_model.suits(config, kind, 50 / 3)}
        assert set(entry[pass_name]["us"]) == suited
        assert set(entry[pass_name]["us"].values()) == {2.0}
        assert entry[pass_name]["failed"] == {}
    assert entry["sizes"] == [20, 0, 30]
    assert "small forward: " in capsys.readouterr().out


def test_a_wrong_result_is_noted_and_not_timed(on_a_cpu, monkeypatch):
    bad = candidates.CUTE_M[1]

    def multiply(operands, out, variant, config):
        on_a_cpu(operands, out, variant, config)
        if config == bad:
            out[-1, -1] += 100

    monkeypatch.setattr(cute, "multiply", multiply)
    entry = candidates.measure([ROW], passes=["forward"])["small"]["forward"]
    assert list(entry["failed"]) == [candidates.name_of(bad)]
    assert candidates.name_of(bad) not in entry["us"]


def test_time_that_is_up_leaves_rows_out(on_a_cpu):
    assert candidates.measure([ROW], seconds=-1.0) == {}


def test_operands_of_a_row_suit_the_hopper_kernel():
    operands = make_operands(ROW, "cpu")
    for pass_name in candidates.KIND_OF_PASS:
        assert any(each.name.startswith("cute") for each in candidates.candidates(operands, pass_name))
