# ruff: noqa
# check: silu
# says: C has x \+ exp\(-x\): the division comes first
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    x = sums.load()
    rounded.store((x / 1.0 + cute.math.exp(-x)).to(rounded.element_type))
