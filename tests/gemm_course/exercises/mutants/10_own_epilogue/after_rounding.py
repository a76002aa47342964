# ruff: noqa
# check: rounding
# says: C has SiLU of rounded sums: convert to 16 bits after SiLU
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    """Write SiLU of a thread's float32 sums to its 16-bit registers."""
    x = sums.load().to(rounded.element_type).to(cutlass.Float32)
    rounded.store((x / (1.0 + cute.math.exp(-x))).to(rounded.element_type))
