"""What the Hopper kernel would do with 8-bit operands if it left sums to wgmma: a counterexample for its tests."""

import cutlass
from cutlass import Int32, cute, pipeline
from cutlass.cute.nvgpu import warpgroup

from course_kernels.kernels.cute_sm90.mainloop import multiply_stage


@cute.jit
def multiply_in_one_sum(
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    blocks: Int32,
) -> pipeline.PipelineState:
    """``mainloop.multiply_apart`` with all of a tile's products in one sum, for tiles that one product covers."""
    b = b[None, None, None, 0, None]
    ring.consumer_wait(state)
    multiply_stage(mma, acc, a, b, state.index, True)
    warpgroup.wait_group(0)
    ring.consumer_release(state)
    state.advance()
    for _ in cutlass.range(1, blocks, unroll=1):
        ring.consumer_wait(state)
        multiply_stage(mma, acc, a, b, state.index, False)
        warpgroup.wait_group(0)
        ring.consumer_release(state)
        state.advance()
    return state
