"""Plans of earlier calls: one for every batch of a layer, found without the checks, safe under threads."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from course_kernels import GemmConfig, grouped_mm, runtime
from course_kernels.engine import plans as kept
from course_kernels.engine.options import Options
from course_kernels.engine.product import Ends, Problem, Product
from course_kernels.engine.signature import signature
from course_kernels.testing import reference
from packed_operands import layer

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
DEVICE = runtime.device()


@pytest.fixture(autouse=True)
def plans(monkeypatch):
    monkeypatch.setattr(kept, "plans", kept.PlanCache())
    return kept.plans


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_warm_call_is_right_for_another_batch_and_other_groups(plans, backend):
    for total, ends in ((290, (100, 100, 289)), (296, (0, 290, 296)), (260, (0, 0, 0))):
        made = layer(total)._replace(offs=torch.tensor(ends, dtype=torch.int32, device=DEVICE))
        out = grouped_mm(*made[:2], offs=made.offs, backend=backend)
        assert torch.equal(out, reference.grouped_mm(*made[:3], torch.float32))
    assert len(plans) == 1


@pytest.mark.parametrize("b_col_major", [True, False])
def test_a_ragged_n_of_another_total_has_a_result_of_other_strides(b_col_major):
    """The operands' own strides may stay: a plan of the old total would write rows of the wrong length."""
    keys = set()
    for total in (300, 333, 290):
        made = layer(total, "n")
        b = made.mat_b.mT.contiguous().mT if b_col_major else made.mat_b
        out = grouped_mm(made.mat_a, b, offs=made.offs, backend="triton", config=GemmConfig(16, 32, 32))
        assert torch.equal(out, reference.grouped_mm(*made[:3], torch.float32))
        keys.add(signature(made._replace(mat_b=b).product(), Options()))
    assert len(keys) == 3


def test_an_out_is_checked_at_every_call(plans):
    made = layer(300)
    memory = torch.zeros(300 * 40 + 300 * 24, device=DEVICE)
    a, out = memory[: 300 * 40].view(300, 40), memory[300 * 40 :].view(300, 24)
    grouped_mm(a, made.mat_b, offs=made.offs, out=out)
    assert len(plans) == 1
    with pytest.raises(ValueError, match="out shares memory with mat_a"):
        grouped_mm(a, made.mat_b, offs=made.offs, out=memory[300 * 40 - 4 : -4].view(300, 24))
    with pytest.raises(ValueError, match=r"out must have shape \(300, 24\)"):
        grouped_mm(a, made.mat_b, offs=made.offs, out=out[:299])


def test_values_of_ends_are_checked_at_every_call(plans):
    made = layer(300)
    for _ in range(2):
        grouped_mm(*made[:2], offs=made.offs, check=True)
    assert len(plans) == 1
    with pytest.raises(ValueError, match=r"offs\[2\] = 301"):
        grouped_mm(*made[:2], offs=torch.tensor([0, 0, 301], dtype=torch.int32, device=DEVICE), check=True)


def test_a_full_cache_makes_room_under_threads():
    """Without the lock, this test fails."""
    cache, failures, interval = kept.PlanCache(8), [], sys.getswitchinterval()

    def fill(start):
        try:
            for i in range(3000):
                cache.put((start, i), i)
                cache.get((start, i - 1))
        except BaseException as error:
            failures.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=fill, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert len(cache) == 8


def test_the_newest_plans_stay():
    cache = kept.PlanCache(2)
    for key in "abc":
        cache.put(key, key.upper())
    assert [cache.get(key) for key in "abc"] == [None, "B", "C"]
    cache.clear()
    assert len(cache) == 0


@pytest.mark.parametrize("taken", [True, False])
def test_an_offer_is_asked_for_once(monkeypatch, plans, taken):
    asked = []

    def offered(problem, product, out):
        asked.append(problem)
        return object() if taken else None

    monkeypatch.setattr(kept, "offered", offered)
    a, b = torch.zeros(5, 24, device=DEVICE).mT, torch.zeros(300, 40, device=DEVICE)
    offs, index = (torch.zeros(each, dtype=torch.int32, device=DEVICE) for each in (3, 300))
    product, out = Product(a, b, Ends(offs, index)), torch.zeros(3, 24, 40, device=DEVICE)
    problem = Problem("k", 3, 24, 40, 300, (3, 24, 40), out.dtype, "ieee", Options())
    for calls in (1, 2):
        found = kept.find_offered(product, Options(), out, lambda: problem)
        assert (found.plan is not None) is taken
        assert (len(asked), len(plans)) == (1, 1), calls


def test_all_plans_can_be_forgotten_at_once():
    first, second = kept.PlanCache(), kept.PlanCache()
    for cache in (first, second):
        cache.put("key", "plan")
    kept.PlanCache.clear_all()
    assert (len(first), len(second)) == (0, 0)
