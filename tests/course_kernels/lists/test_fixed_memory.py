"""Tensors whose memory is replaced, moved or cut short after a plan was made."""

from __future__ import annotations

import pytest
import torch

from course_kernels.lists import fixed_memory
from course_kernels.lists.fixed_memory import FixedMemory


def compared(tensors, addresses, indices):
    """The function of torch's CUDA builds that compares addresses."""
    return all(tensors[i].data_ptr() == addresses[i] for i in indices)


def other_arguments(tensors):
    """A later torch's, perhaps."""
    return True


@pytest.mark.parametrize("compare", [None, compared, other_arguments, lambda *_: False])
def test_fixed_memory_notices_another_address(monkeypatch, compare):
    monkeypatch.setattr(fixed_memory, "_same_addresses", compare)
    x, y = torch.nn.Parameter(torch.ones(4)), torch.empty(0)
    fixed = FixedMemory({"left": [x], "right": [torch.ones(2), y]})
    assert (fixed._fast is not None) == (compare is compared)
    fixed.check()
    x.data.mul_(2)
    fixed.check()
    y.resize_(1000)
    with pytest.raises(RuntimeError, match=r"right\[1\] has other memory .* as after right\[1\].data = "):
        fixed.check()
    y.resize_(0)
    x.data = torch.ones(4)
    with pytest.raises(RuntimeError, match=r"left\[0\] has other memory"):
        fixed.check()


def test_fixed_memory_notices_a_storage_that_ends_earlier(monkeypatch):
    """A smaller storage may get the same address, so the size alone has to tell: here every address counts as equal."""
    monkeypatch.setattr(fixed_memory, "_same_addresses", lambda *_: True)
    x = torch.ones(64, 64)
    fixed = FixedMemory({"left": [torch.ones(1)], "right": [x[:2], x[2:]]})
    fixed.check()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(64 * 64)
    with pytest.raises(RuntimeError, match=r"right\[0\] has other memory than when the plan was made"):
        fixed.check()
    x.untyped_storage().resize_(4 * 64 * 64)
    fixed.check()
