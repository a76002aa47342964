"""Shared memory between strided matrices, against a set of addresses spelled out."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_kernels.memory_overlap import byte_range, check_apart, overlaps_itself, share_memory

BUFFER = torch.zeros(4096, dtype=torch.float16)


def addresses(matrix: torch.Tensor) -> list[int]:
    offsets = [
        r * matrix.stride(0) + c * matrix.stride(1) for r in range(matrix.shape[0]) for c in range(matrix.shape[1])
    ]
    return [matrix.data_ptr() + offset * matrix.element_size() for offset in offsets]


@st.composite
def views(draw, strides=None):
    rows, cols = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    strides = strides or (draw(st.integers(0, 12)), draw(st.integers(0, 12)))
    return BUFFER.as_strided((rows, cols), strides, draw(st.integers(0, 60)))


@st.composite
def alike(draw):
    strides = draw(st.permutations([draw(st.integers(0, 3)), draw(st.integers(0, 24))]))
    return draw(views(strides)), draw(views(strides))


@given(views())
def test_overlaps_itself_is_exact(matrix):
    spelled = addresses(matrix)
    assert overlaps_itself(matrix) or len(set(spelled)) == len(spelled)
    # The other way it is careful: larger strides that thread the smaller ones' gaps are refused, too.
    if len(set(spelled)) < len(spelled):
        assert overlaps_itself(matrix)


@given(alike())
def test_share_memory_is_exact_for_equal_strides(pair):
    x, y = pair
    if overlaps_itself(x) or overlaps_itself(y):
        return
    assert share_memory(x, y) == bool(set(addresses(x)) & set(addresses(y)))
    assert share_memory(y, x) == share_memory(x, y)


@given(views(), views())
def test_share_memory_never_misses(x, y):
    if set(addresses(x)) & set(addresses(y)) and not overlaps_itself(x) and not overlaps_itself(y):
        assert share_memory(x, y)


def test_a_row_and_a_column_of_equal_strides_can_meet():
    column, row = BUFFER.as_strided((4, 1), (3, 2), 3), BUFFER.as_strided((1, 3), (3, 2), 5)  # 3 6 9 12 and 5 7 9
    assert share_memory(row, column)
    assert share_memory(column, row)
    assert not share_memory(row, BUFFER.as_strided((2, 1), (3, 2), 3))
    assert not share_memory(row, BUFFER.as_strided((2, 1), (3, 2), 8))


def test_byte_range():
    start, end = byte_range(BUFFER[:0].view(0, 1))
    assert start == end
    matrix = BUFFER.as_strided((3, 2), (10, 1), 4)
    assert byte_range(matrix) == (BUFFER.data_ptr() + 8, BUFFER.data_ptr() + 8 + (2 * 10 + 1 + 1) * 2)


def test_interlocking_slices_are_apart_and_overlapping_ones_are_named():
    table = torch.zeros(8, 16)
    check_apart({"group_A": (table[::2],), "group_B": (torch.zeros(2, 2),)}, [table[1::2]])
    check_apart({"group_A": (table[:, :8],)}, [table[:, 8:]])
    with pytest.raises(ValueError, match=r"out\[1\] shares memory with group_A\[0\]"):
        check_apart({"group_A": (table[:, :9],)}, [torch.zeros(1, 1), table[:, 8:]])
    with pytest.raises(ValueError, match=r"out\[\d\] shares memory with out\[\d\]"):
        check_apart({}, [table[:4], table[3:]])
    check_apart({"group_A": (table[:4], table[2:])}, [torch.zeros(2, 2)])  # operands may share


def test_sharing_is_judged_as_by_listing_addresses():
    """Slices of one buffer, all of the same strides: what share_memory says is what sets of addresses say."""
    buffer = torch.arange(4 * 6 * 8)
    generator = random.Random(0)

    def cut(extent):
        start = generator.randrange(extent)
        return slice(start, generator.randint(start + 1, extent))

    answers = set()
    for _ in range(500):
        x, y = (buffer.view(4, 6, 8)[cut(4), cut(6), cut(8)] for _ in range(2))
        x = x[0] if generator.random() < 0.5 else x
        x, y = (x, y) if generator.random() < 0.5 else (y, x)
        wanted = bool(set(x.flatten().tolist()) & set(y.flatten().tolist()))
        answers.add(wanted)
        assert share_memory(x, y) == wanted, (x, y)
    assert answers == {True, False}
