"""What a descriptor can describe: strides, alignment and extents, for a load and for a store."""

from __future__ import annotations

import pytest
import torch

from course_kernels.engine.descriptors import (
    batch_access,
    load_access,
    ragged_access,
    strides_for_load,
    strides_for_store,
)
from course_kernels.kernels.codes import Layout, Store

HALF = torch.float16


def matrix(rows, cols, pitch=None, offset=0, dtype=HALF):
    return torch.zeros(offset + rows * (pitch or cols), dtype=dtype).as_strided(
        (rows, cols), (pitch or cols, 1), offset
    )


@pytest.mark.parametrize(
    "tensor, strides",
    [
        (matrix(4, 16), (16, 1)),
        (matrix(4, 12, pitch=16), (16, 1)),
        (matrix(1, 12, pitch=13), (16, 1)),  # the stride along one row is never used
        (matrix(4, 12), None),  # rows of 24 bytes
        (matrix(4, 16, offset=4), None),  # an address off 16 bytes
        (matrix(4, 16).mT, None),  # the last stride is not 1
        (matrix(0, 16), None),
        (matrix(4, 16)[:1].expand(4, 16), None),  # rows that share memory
        (torch.zeros(3, 4, 8, dtype=HALF), (32, 8, 1)),
    ],
)
def test_strides_of_a_load(tensor, strides):
    assert strides_for_load(tensor) == strides


def test_a_store_wants_whole_16_bytes_at_the_end_of_a_row():
    tensor = matrix(4, 12, pitch=16)
    assert strides_for_load(tensor) == (16, 1)
    assert strides_for_store(tensor) is None
    assert strides_for_store(matrix(4, 8, pitch=16)) == (16, 1)


def test_an_operand_is_read_in_the_layout_that_a_descriptor_has():
    wide = matrix(4, 16)
    assert load_access(wide, True).kind == Layout.ROW_MAJOR
    assert load_access(matrix(16, 8).mT, True).kind == Layout.COL_MAJOR
    for access in (load_access(wide, False), load_access(matrix(4, 12)[:, ::2], True)):
        assert access.kind == Layout.ANY
        assert not access.has_descriptor
        assert access.descriptor(wide, (16, 16)) is None


def test_results_go_through_a_window_or_a_batch_where_they_can():
    assert ragged_access(matrix(4, 16), True, stored=True) == (Store.WINDOW, (4, 16), (16, 1), True)
    assert ragged_access(matrix(4, 12, pitch=16), True, stored=True).kind == Store.POINTERS
    assert ragged_access(matrix(4, 16), False).kind == Store.POINTERS
    batch = torch.zeros(3, 4, 16, dtype=HALF)
    assert batch_access(batch, True) == (Store.GROUPED, (3, 4, 16), (64, 16, 1), False)
    assert batch_access(batch.mT, True).kind == Store.POINTERS
