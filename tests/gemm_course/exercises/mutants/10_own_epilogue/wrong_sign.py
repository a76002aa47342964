# ruff: noqa
# check: silu
# says: x / \(1 \+ exp\(x\)\): the exponent\'s sign is wrong
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    """Write SiLU of a thread's float32 sums to its 16-bit registers."""
    x = sums.load()
    rounded.store((x / (1.0 + cute.math.exp(x))).to(rounded.element_type))
