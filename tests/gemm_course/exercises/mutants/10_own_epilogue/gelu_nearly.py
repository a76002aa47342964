# ruff: noqa
# check: silu
# says: x / \(1 \+ exp\(-1\.702 x\)\), an approximation of GELU
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    """Write SiLU of a thread's float32 sums to its 16-bit registers."""
    x = sums.load()
    rounded.store((x / (1.0 + cute.math.exp(-1.702 * x))).to(rounded.element_type))
