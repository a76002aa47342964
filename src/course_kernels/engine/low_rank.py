"""A product of low rank that is added to the sums of another product: the part of an adapter (LoRA)."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class LowRank(NamedTuple):
    """``scale * left @ right[g]`` for the rows of each group g, added in float32. Only the Triton kernel for groups
    along M computes it.

    Attributes:
        left: (rows, r) of the operands' dtype, contiguous; in the order of the result's rows, also where A's are
            gathered.
        right: (G, r, N) of this dtype, any strides, in the order of B's columns.
        scale: a factor.
    """

    left: Tensor
    right: Tensor
    scale: float = 1.0

    @property
    def block(self) -> int:
        """The depth of a step of the kernel along the rank."""
        return min(64, max(16, 1 << (self.right.shape[1] - 1).bit_length()))

    def key(self) -> tuple | None:
        """This part of a plan's key; None for lazily negated tensors, which kernels cannot read."""
        left, right = self.left, self.right
        if left.is_neg() or right.is_neg():
            return None
        bits = left.data_ptr() & 15, right.data_ptr() & 15
        return right.shape, right.stride(), right.dtype, left.device, bits, self.scale


def arguments(added: LowRank | None) -> dict[str, Any]:
    """The arguments of ``contiguous_kernel`` for a product of low rank; without one, those that leave it out."""
    if added is None:
        names = ("left_ptr", "right_ptr", "low_scale", "stride_right_g", "stride_right_r", "stride_right_n")
        return dict.fromkeys(names) | dict(RANK=0, BLOCK_R=0)
    left, right, scale = added
    of_group, of_rank, of_column = right.stride()
    return dict(
        left_ptr=left, right_ptr=right, low_scale=float(scale), stride_right_g=of_group, stride_right_r=of_rank,
        stride_right_n=of_column, RANK=right.shape[1], BLOCK_R=added.block,
    )  # fmt: skip
