# ruff: noqa
# check: rounding
# says: in the PTX, a conversion to 16 bits comes before the exponential
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    """Write SiLU of a thread's float32 sums to its 16-bit registers."""
    x = sums.load().to(rounded.element_type)
    rounded.store((x / (1.0 + cute.math.exp(-x.to(cutlass.Float32)).to(rounded.element_type))).to(rounded.element_type))
