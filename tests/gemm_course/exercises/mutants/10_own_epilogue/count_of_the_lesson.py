# ruff: noqa
# check: shape
# says: \d+ of a thread\'s \d+ sums are not activated; in their place C has nothing
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    """Write SiLU of a thread's float32 sums to its 16-bit registers."""
    for i in range(64):
        x = sums[i]
        rounded[i] = (x / (1.0 + cute.exp(-x))).to(rounded.element_type)
