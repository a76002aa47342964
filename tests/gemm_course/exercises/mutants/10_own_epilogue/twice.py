# ruff: noqa
# check: silu
# says: it is applied twice
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    """Write SiLU of a thread's float32 sums to its 16-bit registers."""
    for _ in cutlass.range_constexpr(2):
        x = sums.load()
        sums.store(x / (1.0 + cute.math.exp(-x)))
    rounded.store(sums.load().to(rounded.element_type))
