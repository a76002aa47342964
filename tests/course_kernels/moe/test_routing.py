"""The order of choices by expert: the same from torch and from the kernels, for few choices and for many."""

from __future__ import annotations

import re

import pytest
import torch

from course_kernels import runtime
from course_kernels.engine.plans import PlanCache
from course_kernels.moe import Routing, routing
from moe_layers import DEVICE

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


def some(tokens, top_k, experts, seed=0, dtype=torch.int64):
    ids = torch.randint(-2, experts + 2, (tokens, top_k), generator=torch.Generator().manual_seed(seed))
    return ids.to(dtype).to(DEVICE)


def assert_sorted(ids, experts, found):
    """What a routing promises, choice by choice."""
    top_k = ids.shape[1]
    flat = ids.reshape(-1).tolist()
    wanted = [i for e in range(experts) for i, expert in enumerate(flat) if expert == e]
    elsewhere = [i for i, expert in enumerate(flat) if not 0 <= expert < experts]
    assert all(each.dtype == torch.int32 for each in found)
    assert found.choices.tolist() == wanted + elsewhere
    assert found.tokens.tolist() == [i // top_k for i in wanted + elsewhere]
    assert found.ends.tolist() == [sum(expert in range(e + 1) for expert in flat) for e in range(experts)]
    places = {choice: row for row, choice in enumerate(wanted)}
    assert found.rows.shape == ids.shape
    assert found.rows.is_contiguous(), "kernels read places one after the other"
    assert found.rows.flatten().tolist() == [places.get(i, -1) for i in range(len(flat))]


# Numbers of choices up to which they are compared all with all, and of chunks up to which each program sums counts.
WAYS = {"few": (10**6, 10**6), "many": (0, 10**6), "very many": (0, 0)}


def sort_as(monkeypatch, way):
    monkeypatch.setattr(routing, "_sortings", PlanCache())
    for name, most in zip(("FEW", "FEW_CHUNKS"), WAYS[way]):
        monkeypatch.setattr(routing, name, most)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 2, 4), (33, 3, 40), (90, 4, 70)], ids=str)
def test_every_choice_has_its_row(monkeypatch, way, sizes):
    sort_as(monkeypatch, way)
    for dtype in (torch.int64, torch.int32):
        tokens, top_k, experts = sizes
        ids = some(tokens, top_k, experts, dtype=dtype)
        assert_sorted(ids, experts, Routing.of(ids, experts, backend="triton"))
        assert_sorted(ids, experts, Routing.of(ids, experts, backend="torch"))


@pytest.mark.parametrize("way", ["many", "very many"])
@pytest.mark.parametrize("sizes", [(20, 3, 300), (1100, 4, 5)], ids=["experts", "chunks"])
def test_more_than_a_block_of_experts_or_of_chunks(monkeypatch, way, sizes):
    """A program takes 128 experts at a time, and sums counts of 64 chunks, or of 256."""
    sort_as(monkeypatch, way)
    monkeypatch.setattr(routing, "CHUNK", 8)  # 550 chunks
    tokens, top_k, experts = sizes
    ids = some(tokens, top_k, experts)
    wanted, found = (Routing.of(ids, experts, backend=backend) for backend in ("torch", "triton"))
    assert all(map(torch.equal, wanted, found))


@pytest.mark.parametrize("way", WAYS)
def test_what_a_call_returns_is_one_allocation_and_what_an_operator_returns_is_not(monkeypatch, way):
    sort_as(monkeypatch, way)
    ids = some(7, 3, 5)  # no size is a multiple of 16 bytes
    found, apart = Routing.of(ids, 5, backend="triton"), torch.ops.course_kernels.moe_routing(ids, 5, "triton")
    assert len({each.untyped_storage().data_ptr() for each in found}) == 1
    assert len({each.untyped_storage().data_ptr() for each in apart}) == 4
    assert all(map(torch.equal, found, apart))
    assert all(each.data_ptr() % 16 == 0 and each.is_contiguous() for each in found)


@pytest.mark.parametrize("way", WAYS)
def test_extreme_ids_and_strides(monkeypatch, way):
    sort_as(monkeypatch, way)
    ids = some(30, 4, 6)
    ids[3, 1], ids[4, 2], ids[5, 0] = 2**62, -(2**63), 2**32  # 0 in their lower 32 bits
    for strided in (ids.mT.contiguous().mT, ids.repeat_interleave(3, 1)[:, ::3], ids[:1].expand(30, 4), ids[::2]):
        assert_sorted(strided, 6, Routing.of(strided, 6, backend="triton"))


def test_both_kernels_meet_at_the_number_where_they_change():
    few, many = some(routing.FEW // 2, 2, 9), some(routing.FEW // 2 + 1, 2, 9)
    for ids in (few, many):
        wanted, found = (Routing.of(ids, 9, backend=backend) for backend in ("torch", "triton"))
        assert all(torch.equal(*pair) for pair in zip(wanted, found))


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4)], ids=str)
def test_no_choices(backend, sizes):
    tokens, top_k, experts = sizes
    found = Routing.of(some(tokens, top_k, experts), experts, backend=backend)
    assert not found.ends.any()
    assert [each.numel() for each in found] == [experts, 0, 0, 0]


@pytest.mark.parametrize(
    ("ids", "experts", "message"),
    [
        (torch.zeros(3, 2), 4, "top_k_index must be torch.int32 or torch.int64"),
        (torch.zeros(3, dtype=torch.int64), 4, "top_k_index must be 2-D"),
        ([[1]], 4, "top_k_index must be a torch.Tensor"),
        (torch.zeros(3, 2, dtype=torch.int64), 4.0, "num_experts must be an int, got float"),
        (torch.zeros(3, 2, dtype=torch.int64), True, "num_experts must be an int, got bool"),
        (torch.zeros(3, 2, dtype=torch.int64), -1, "num_experts must be from 0 to 2**20 - 1, got -1"),
        (torch.zeros(1, 1, dtype=torch.int64).expand(2**20, 2**12), 4, "fewer than 2**31 - 2**16 choices"),
    ],
)
def test_errors(ids, experts, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        Routing.of(ids, experts)


def test_a_backend_that_does_not_exist():
    with pytest.raises(ValueError, match=r"backend must be one of .*, got 'x'"):
        Routing.of(torch.zeros(3, 2, dtype=torch.int64), 4, backend="x")
