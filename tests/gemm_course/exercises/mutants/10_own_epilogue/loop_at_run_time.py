# ruff: noqa
# check: registers
# says: the sums go to local memory
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    """Write SiLU of a thread's float32 sums to its 16-bit registers."""
    for i in cutlass.range(cute.size(sums), unroll=1):
        x = sums[i]
        rounded[i] = (x / (1.0 + cute.math.exp(-x))).to(rounded.element_type)
