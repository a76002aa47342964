"""Plans of earlier calls: one for every batch of a layer, found without the checks, safe under threads."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from course_kernels import GemmConfig, grouped_mm, runtime
from course_kernels.engine import plans as kept
from course_kernels.engine.options import Options
from course_kernels.engine.signature import signature
from course_kernels.packed.checks import problem_of
from course_kernels.testing import integers, reference
from packed_operands import Operands

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
DEVICE = runtime.device()


@pytest.fixture(autouse=True)
def plans(monkeypatch):
    monkeypatch.setattr(kept, "plans", kept.PlanCache())
    return kept.plans


def layer(total, mode="m", groups=3, rows=16, columns=24, depth=40):
    """Operands of a layer on a batch of ``total`` rows, packed along M, N or K."""
    shapes = {
        "m": ((total, depth), (groups, depth, columns)),
        "n": ((groups, rows, depth), (depth, total)),
        "k": ((rows, total), (total, columns)),
    }[mode]
    a, b = (integers(shape, torch.float32, i, device=DEVICE) for i, shape in enumerate(shapes))
    if mode == "k":
        a = a.mT.contiguous().mT  # as a gradient has it: its strides do not depend on the total
    offs = torch.tensor([total // 3, total // 3, total - 1], dtype=torch.int32, device=DEVICE)
    return Operands(a, b, offs)


def key(operands, options=None, **parts):
    return signature(operands.product(**parts), options or Options())


@pytest.mark.parametrize("mode", ["m", "k"])
def test_a_new_total_is_no_new_key(mode):
    keys = {key(layer(total, mode)) for total in (290, 291, 260, 296)}  # a quarter of an octave
    assert len(keys) == 1
    assert None not in keys


@pytest.mark.parametrize("totals", [(0, 1), (296, 297), (3000, 4000)], ids=str)
def test_totals_at_which_a_backend_may_choose_otherwise_have_keys_of_their_own(totals):
    assert len({key(layer(total)) for total in totals}) == 2
    assert len({problem_of(layer(total).product(), Options()).rows_per_group for total in totals}) == 2


def test_everything_else_is_in_the_key():
    made = layer(300)
    others = [
        made._replace(mat_a=made.mat_a.double()),
        made._replace(mat_a=torch.zeros(300, 41, device=DEVICE)[:, :40]),
        made._replace(mat_a=torch.zeros(300 * 40 + 1, device=DEVICE)[1:].view(300, 40)),
        made._replace(mat_b=made.mat_b.mT.contiguous().mT),
        made._replace(offs=made.offs.long()),
        made._replace(bias=torch.zeros(3, 24, device=DEVICE)),
    ]
    options = [dict(out_dtype=torch.float16), dict(backend="torch"), dict(config=GemmConfig()), dict(num_sms=100)]
    keys = [key(each) for each in (made, *others)]
    keys += [key(made, Options(**each)) for each in options] + [key(made, keep_tail=True)]
    assert len(set(keys)) == len(keys)
    assert None not in keys


@pytest.mark.parametrize(
    "change",
    [
        dict(mat_a=[1]), dict(mat_a=torch.zeros(3)), dict(offs=torch.tensor(3)), dict(bias=1),
        dict(offs=torch.zeros(6, dtype=torch.int32)[::2]), dict(mat_a=torch.eye(300, 40).to_sparse()),
        dict(mat_a=torch.zeros(300, 40, dtype=torch.complex64).conj().imag), dict(scale_a=torch.ones(7)),
    ],
)  # fmt: skip
def test_what_no_plan_is_kept_for(change):
    assert key(layer(300)._replace(**change)) is None


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
        keys.add(key(made._replace(mat_b=b)))
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
