"""The records of the list API without a GPU: what is verified, and what their programs write."""

from __future__ import annotations

import types

import pytest
import torch

import list_api
import timelines
from clock import Clock
from course_kernels.bench import record
from course_kernels.bench.interface import WrongResult
from list_api import Operands


@pytest.fixture
def on_a_gpu(monkeypatch):
    """The programs as on a GPU, with problems of 8³, the tests' clock, and torch in place of plans."""

    class Plan:
        def __init__(self, group_A, group_B, *, method="auto", config=None, **options):
            self.group_A, self.group_B = group_A, group_B
            dtype = torch.bfloat16 if group_A[0].dtype.itemsize == 1 else group_A[0].dtype
            self.out = [torch.empty(a.shape[0], b.shape[1], dtype=dtype) for a, b in zip(group_A, group_B)]
            self.launches = [types.SimpleNamespace(config=config or timelines.BLOCK)]

        def run(self):
            for a, b, c in zip(self.group_A, self.group_B, self.out):
                c.copy_(a.double() @ b.double())
            return self.out

    def small(problems):
        generator = torch.Generator().manual_seed(0)
        draw = [torch.randn(8, 8, generator=generator).half() for _ in range(2 * len(problems))]
        return Operands(draw[::2], draw[1::2])

    monkeypatch.setattr(Operands, "of", small)
    monkeypatch.setattr(list_api, "GroupGemmPlan", Plan)
    monkeypatch.setattr(list_api, "GpuTimer", Clock)
    monkeypatch.setattr(list_api, "group_gemm", lambda group_A, group_B: Plan(group_A, group_B).run())
    monkeypatch.setattr(list_api, "TutorialPlan", lambda group_A, group_B, config: Plan(group_A, group_B))
    monkeypatch.setattr(list_api, "configurations", lambda: [{}, {}])
    monkeypatch.setattr(list_api, "empty_launch", lambda: lambda: None)
    monkeypatch.setattr(list_api.timing, "host_us", lambda function: 1.25)
    monkeypatch.setattr(list_api.runtime, "num_sms", lambda: 4)
    return Plan


@pytest.fixture
def operands():
    generator = torch.Generator().manual_seed(0)
    shapes = ((8, 16), (16, 8), (3, 40), (40, 5))
    a, b, c, d = (torch.randn(shape, generator=generator).half() for shape in shapes)
    return Operands([a, c], [b, d])


def test_a_wrong_problem_is_found(operands):
    right = [(a.double() @ b.double()).half() for a, b in zip(operands.group_A, operands.group_B)]
    operands.verify(right)
    right[1][2, 3] += 1
    with pytest.raises(WrongResult, match="problem 1 is wrong"):
        operands.verify(right)
    with pytest.raises(ValueError, match="zip"):
        operands.verify(right[:1])


def test_every_call_is_verified_and_an_empty_launch_is_not(operands):
    loop = list_api.cublas_loop(operands)
    clock = Clock({"empty": 1.0, "cublas loop": 2.0})
    found = list_api.timed(operands, {"empty": lambda: None, "cublas loop": loop}, 4, clock)
    assert list_api.medians(found) == {"empty": 1.0, "cublas loop": 2.0}
    with pytest.raises(AssertionError, match=r"wrong or failed: .*'ours': .*problem 0 is wrong"):
        list_api.timed(operands, {"ours": lambda: [torch.zeros_like(c) for c in operands.empty()]}, 4, clock)


def test_the_record_of_rows_is_as_the_recorded_one(on_a_gpu):
    old, new = record.load("group_gemm"), list_api.rows()
    assert set(old) - {"provenance"} == set(new)
    assert list(old["rows"]) == list(new["rows"])
    for name, entry in old["rows"].items():
        assert entry["problems"] == [list(problem) for problem in new["rows"][name]["problems"]]
        for key in ("us", "host_us"):
            assert set(entry[key]) == set(new["rows"][name][key])
        assert set(new["rows"][name]["us"]["naive"]) == {"median_us", "q1_us", "q3_us"}


def test_the_other_records_are_as_the_recorded_ones(on_a_gpu):
    old, new = record.load("programs"), list_api.programs()
    assert {row: set(entry) for row, entry in new["rows"].items()} == {
        row: set(entry) for row, entry in old["rows"].items()
    }
    assert set(new["rows"]["4 x 1024^3"]["tma"]) == {"33", "66", "84", "108", "128", "4"}
    old, new = record.load("when_to_group"), list_api.when_to_group()
    assert [{**cell, "us": set(cell["us"])} for cell in new["cells"]] == [
        {**cell, "us": set(cell["us"])} for cell in old["cells"]
    ]


def test_the_tutorials_kernel_is_measured_as_tuned_and_with_the_first_choice(on_a_gpu, monkeypatch):
    """Its autotuner's key is the number of problems alone."""
    us = iter([{"tutorial 0": 5.0, "tutorial 1": 4.0}] + [{"tutorial 0": 2.0, "tutorial 1": 3.0}] * 9)
    monkeypatch.setattr(list_api, "GpuTimer", lambda: Clock(next(us)))
    rows = list(list_api.rows()["rows"].values())
    names = ("tutorial", "tutorial, key=group_size")
    tuned, keyed = ([row["us"][name]["median_us"] for row in rows[:2]] for name in names)
    assert (tuned, keyed) == ([4.0, 2.0], [4.0, 3.0])
