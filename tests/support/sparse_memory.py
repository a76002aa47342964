"""Tensors that reach over gigabytes and take a few pages: the system gives memory to what is touched alone."""

from __future__ import annotations

import functools
import mmap

import torch

ELEMENTS = 2**33  # that a tensor may reach over
_BEFORE = 2**31  # elements in front of it, which 32 bits wrap around to
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


@functools.cache
def _memory() -> torch.Tensor:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, 4 * (_BEFORE + ELEMENTS), flags=flags), dtype=torch.uint8)


def spread(tensor: torch.Tensor, dim: int, aligned: bool = True) -> torch.Tensor:
    """A tensor of the same values, of which entries along one dimension are more than 2**30 elements apart.

    All that this returns shares memory: one at a time.

    Args:
        tensor: with 3 to 8 entries along ``dim``, so that the last ones lie beyond 2**31 elements.
        dim: which one.
        aligned: the distance is a multiple of 16 bytes.
    """
    assert 3 <= tensor.shape[dim] < 8
    strides, step = [0] * tensor.dim(), 1
    for other in reversed(range(tensor.dim())):
        if other != dim:
            strides[other] = step
            step *= tensor.shape[other]
    strides[dim] = 2**30 + (16 if aligned else 17)
    memory = _memory().view(tensor.dtype)
    return memory.as_strided(tensor.shape, strides, _BEFORE).copy_(tensor)
