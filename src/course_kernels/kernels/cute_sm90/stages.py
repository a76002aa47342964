"""The ring of stages: the layout of blocks in shared memory, and the barriers between writing and reading warps.

A stage holds a block of A and a block of B. One barrier counts the arriving bytes until the stage is full. The other
one counts the warps that have read it until it is free: in a cluster those of both CTAs, because a CTA loads only half
of the block that both use, of B or of A, and writes it to both.
"""

import copy
import dataclasses

import cutlass
from cutlass import Boolean, cute, pipeline
from cutlass.cute.nvgpu import warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from course_kernels.kernels.cute_sm90.config import WARP_GROUP


def shared_layout(
    dtype: type[cutlass.Numeric], lines: int, depth: int, count: int, across: bool = False, pitch: int | None = None
) -> cute.ComposedLayout:
    """Layout of ``count`` blocks of (lines, depth), swizzled so that neither TMA nor wgmma meets a bank conflict.
    Depth is contiguous; with ``across``, lines are. A block begins ``pitch`` elements after the one before it; by
    default without a gap."""
    order, contiguous = (LayoutEnum.COL_MAJOR, lines) if across else (LayoutEnum.ROW_MAJOR, depth)
    kind = hopper_helpers.get_smem_layout_atom(order, dtype, contiguous)
    atom = warpgroup.make_smem_layout_atom(kind, dtype)
    block = cute.tile_to_shape(atom, (lines, depth), order=(1, 0) if across else (0, 1))
    return cute.append(block, cute.make_layout(count, stride=pitch or lines * depth))


def make_ring(config, barriers: cute.Pointer, copying_threads: int = 0) -> pipeline.PipelineTmaAsync:
    """Make the barriers of the ring of stages; ``filled_by`` sets the bytes of a full stage. If ``copying_threads``
    more threads fill a stage, each of them arrives at its barrier."""
    # The warps that share the CTA's tile read a stage; the other CTA of the cluster writes to it, too.
    readers = config.sharing_groups * (WARP_GROUP // 32) * config.cluster
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1 + copying_threads),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, readers),
        tx_count=0,
        cta_layout_vmnk=cute.make_layout((1, config.cluster, 1, 1)),
        defer_sync=True,
    )


def filled_by(ring: pipeline.PipelineTmaAsync, stage_bytes: int) -> pipeline.PipelineTmaAsync:
    """A copy of the ring whose stages are full when ``stage_bytes`` have arrived."""
    full = copy.copy(ring.sync_object_full)
    full.tx_count = stage_bytes
    return dataclasses.replace(ring, sync_object_full=full)


@cute.jit
def wait_full(ring: pipeline.PipelineAsync, state: pipeline.PipelineState, full: Boolean):
    """Wait until a stage of 8-bit operands is full; ``full``: it already was at the last poll. CuTe's own wait lets the
    warp sleep, which is too long for blocks of one-byte elements: polling is 4 to 6 % faster."""
    while not full:
        full = ring.consumer_try_wait(state)


@cute.jit
def wait_free(ring: pipeline.PipelineAsync, state: pipeline.PipelineState):
    """Wait until a stage of 8-bit operands is free, by polling as in ``wait_full``."""
    free = ring.producer_try_acquire(state)
    while not free:
        free = ring.producer_try_acquire(state)


@cute.jit
def skip_stages(ring: pipeline.PipelineAsync, state: pipeline.PipelineState) -> pipeline.PipelineState:
    """Mark the remaining stages of a round as full without loading anything. Called by one warp."""
    while state.index != 0:
        wait_free(ring, state)
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive(ring.producer_get_barrier(state))
        state.advance()
    return state
