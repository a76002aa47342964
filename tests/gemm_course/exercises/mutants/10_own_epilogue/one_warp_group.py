# ruff: noqa
# check: threads
# says: only warp group 1 applies it; in the other
import cutlass
from cutlass import cute


@cute.jit
def silu_epilogue(sums: cute.Tensor, rounded: cute.Tensor):
    """Write SiLU of a thread's float32 sums to its 16-bit registers."""
    x = sums.load()
    if cute.arch.thread_idx()[0] < 256:
        x = x / (1.0 + cute.math.exp(-x))
    rounded.store(x.to(rounded.element_type))
