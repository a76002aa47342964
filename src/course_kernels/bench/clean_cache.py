"""Times that begin with an L2 cache which has nothing to write back, and a read of memory to compare them with.

``timing.interleaved_us`` overwrites L2 before each call, and most of what it wrote is still there, to be written back
when something else needs the room. So a call pays for up to 60 MB of writes that are not its own: 8 to 9 µs on an H200,
whatever it reads. Where a call takes 80 µs, that decides how near it comes to the memory's rate.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_kernels.bench import timing
from course_kernels.kernels.language import tl, triton

_READ = 64 * 2**20  # elements of 4 bytes: four times the L2 cache of an H200
_BLOCK = 16384


def interleaved_us(functions: dict[str, Callable[[], object]], repeats: int = 60) -> dict[str, list[float]]:
    """As ``timing.interleaved_us``, but before each call other memory is read, which evicts what the overwriting
    left."""
    other = torch.zeros(_READ, dtype=torch.int32, device="cuda")
    return timing.interleaved_us(functions, repeats, before=lambda: read(other))


def read(source: Tensor) -> Tensor:
    """Read an int32 tensor without gaps once, and write nearly nothing: the sum of every 16,384 elements."""
    sums = torch.empty(-(-source.numel() // _BLOCK), dtype=torch.int32, device=source.device)
    _sum_blocks[(sums.numel(),)](source, sums, source.numel(), BLOCK=_BLOCK, num_warps=8)
    return sums


@triton.jit
def _sum_blocks(source, sums, size, BLOCK: tl.constexpr):
    """The sum of a block of elements for each program."""
    block = tl.program_id(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + block, tl.sum(tl.load(source + at, mask=at < size, other=0), axis=0))
