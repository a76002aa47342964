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


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float32, torch.int32, torch.bool]
)
def test_pad_and_pack_keep_the_dtype_and_trailing_dimensions(dtype):
    layout = build("sizes", [2, 0, 3])
    packed = integers((5, 2, 3), torch.float32).to(dtype)
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


def test_the_result_has_a_gradient_without_rows_and_without_slots():
    """Sums over nothing, but a loss that adds them must still reach the rows."""
    for layout, shape, total, slots in (
        (build("sizes", [0, 0]), (0, 3), 0, 4),
        (build("sizes", [2, 1]), (3, 3), 3, 0),
        (build("sizes", [2, 1]), (0, 3), 3, 2),
    ):
        packed = torch.ones(shape, requires_grad=True)
        padded = layout.pad(packed, slots, fill=2.0)
        again = layout.pack(padded, total, fill=2.0)
        assert padded.shape == (2, slots, 3)
        assert again.shape == (total, 3)
        (padded.sum() + again.sum()).backward()
        assert packed.grad.shape == shape
        if not shape[0]:
            assert (padded == 2).all()
            assert not packed.grad.any()
