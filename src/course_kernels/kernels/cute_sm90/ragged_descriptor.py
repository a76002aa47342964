"""Ragged descriptors: one group's lines end where the group ends, for all groups in the same descriptor.

So lines past the group's end are out of bounds: a load brings zeros instead of the next group's lines, without reading
them, and a store does not write them. This takes two more dimensions, which cancel out because addresses wrap at 64
bits: with B = 2**30 lines of stride s, and coordinates (B - n, B, end) along strides (s, 2**34 - s, s), the address is
(B - n) * s + B * (2**34 - s) + end * s = (end - n) * s + 2**64: the line n before the group's end, where n more lines
are in bounds. The idea is Triton's (``triton.tools.ragged_tma``).
"""

import cutlass
from cutlass import Int32, cute

LINES = 2**30
ANY = 2**31 - 1


def make_ragged(operand: cute.Tensor, ragged: cutlass.Constexpr[int]) -> cute.Tensor:
    """Make the tensor that a ragged descriptor describes, of a matrix whose mode ``ragged``, 0 or 1, has the groups. It
    may be one of several matrices, a third mode."""
    pitch = operand.stride[ragged]
    shape = tuple(LINES if mode == ragged else operand.shape[mode] for mode in range(cute.rank(operand)))
    layout = cute.make_layout((*shape, ANY, ANY), stride=(*operand.stride, 2**34 - pitch, pitch))
    return cute.make_tensor(operand.iterator, layout)


def open_at(
    described: cute.Tensor, ragged: cutlass.Constexpr[int], line: Int32, end: Int32, other: Int32
) -> cute.Tensor:
    """Coordinates that start at ``line`` of a group that ends before line ``end``, and at ``other`` in the mode that is
    not ragged."""
    first = LINES - (end - line)
    return cute.domain_offset((other, first) if ragged else (first, other), described[None, None, LINES, end])
