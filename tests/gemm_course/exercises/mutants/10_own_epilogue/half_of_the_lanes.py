# ruff: noqa
# check: threads
# says: only 128 of 256 threads apply it; in the others C has the sums
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    """Write SiLU of a thread's float32 sums to its 16-bit registers."""
    x = sums.load()
    if cute.arch.thread_idx()[0] % 2 == 0:
        x = x / (1.0 + cute.math.exp(-x))
    rounded.store(x.to(rounded.element_type))
