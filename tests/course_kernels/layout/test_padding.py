"""Rows spread over padded slots and packed again: nothing is lost, and nothing is read from elsewhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_kernels.testing import integers
from group_layouts import KINDS, TAIL, build

sizes_lists = st.lists(st.integers(0, 9), max_size=12)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(sizes=sizes_lists, spare=st.integers(0, 2))
def test_pad_and_pack_are_inverse(kind, sizes, spare):
    layout = build(kind, sizes)
    max_m, used = max(sizes, default=0) + (0 if kind == "masked_m" else spare), sum(sizes)
    packed = torch.arange(1, 2 * (used + TAIL) + 1, dtype=torch.float64).view(used + TAIL, 2)
    padded = layout.pad(packed, max_m, fill=-7)
    start = 0
    for g, m in enumerate(sizes):
        assert torch.equal(padded[g, :m], packed[start : start + m])
        assert (padded[g, m:] == -7).all()
        start += m
    again = layout.pack(padded, used + TAIL)
    assert torch.equal(again[:used], packed[:used])
    assert torch.equal(again[used:], torch.zeros(TAIL, 2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float32, torch.int32])
def test_pad_and_pack_keep_the_dtype_and_trailing_dimensions(dtype):
    layout = build("sizes", [2, 0, 3])
    packed = integers((5, 2, 3), dtype)
    padded = layout.pad(packed, 4)
    assert padded.shape == (3, 4, 2, 3)
    assert padded.dtype == dtype
    assert torch.equal(layout.pack(padded, 5).to(torch.float64), packed.to(torch.float64))
    assert not padded[1].to(torch.float64).any()


def test_fp8_padding_takes_the_fill_value_and_not_its_bits():
    padded = build("sizes", [1]).pad(integers((1, 2), torch.float8_e4m3fn), 2, fill=1.5)
    assert padded.float()[0, 1].tolist() == [1.5, 1.5]


def test_pack_reads_no_padding_and_its_gradient_writes_none():
    layout = build("ends", [2, 0, 1])
    padded = torch.full((3, 2, 1), torch.nan, dtype=torch.float64)
    padded[0], padded[2, 0] = 1.0, 2.0
    padded.requires_grad_()
    packed = layout.pack(padded, 5)
    assert packed.flatten().tolist() == [1, 1, 2, 0, 0]
    packed.sum().backward()
    assert padded.grad.flatten().tolist() == [1, 1, 0, 0, 1, 0]


def test_rows_that_do_not_fit_are_dropped_and_not_read_from_elsewhere():
    layout = build("sizes", [3, 2])
    packed = torch.arange(1.0, 4.0)[:, None]  # two rows fewer than the layout claims
    assert layout.pad(packed, 2).flatten().tolist() == [1, 2, 0, 0]
    assert layout.pack(torch.ones(2, 2, 1), 5).flatten().tolist() == [1, 1, 0, 1, 1]


@pytest.mark.parametrize("sizes", [[2, 0, 1], []], ids=str)
def test_what_comes_of_no_rows_has_a_gradient_too(sizes):
    layout = build("sizes", sizes)
    slots = torch.zeros(len(sizes), 0, 2, requires_grad=True)
    packed = layout.pack(slots, 3, fill=7)
    assert torch.equal(packed, torch.full((3, 2), 7.0))
    rows = torch.zeros(0, 2, requires_grad=True)
    padded = layout.pad(rows, 4, fill=7)
    assert torch.equal(padded, torch.full((len(sizes), 4, 2), 7.0))
    (packed.sum() + padded.sum() + layout.pad(torch.zeros(3, 2, requires_grad=True), 0).sum()).backward()
    assert slots.grad.shape == slots.shape
    assert rows.grad.shape == rows.shape
