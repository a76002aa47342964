# ruff: noqa
# check: -
# says: expected reshaped size to be the same
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    """Write SiLU of a thread's float32 sums to its 16-bit registers."""
    x = sums.load().reshape((64, 2))
    rounded.store((x / (1.0 + cute.math.exp(-x))).to(rounded.element_type))
