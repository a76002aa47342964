"""Lesson 10's kernel, from the lesson's own cells: C = A Bᵀ on Hopper, with an epilogue from outside."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, cute, pipeline
from cutlass.base_dsl.compiler import DumpDir
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

TILE_M, TILE_K, STAGES, WARP_GROUP = 128, 64, 4, 128
MAX_TILE_N = 192  # with more, the stages and the tile of C need more than an SM's 227 KiB
_PRODUCER, _CONSUMER = pipeline.PipelineUserType.Producer, pipeline.PipelineUserType.Consumer


@cute.jit
def load(ring: pipeline.PipelineAsync, a_copy: tuple, b_copy: tuple, blocks: Int32):
    """The producer warp: copy block after block of A and B into the ring."""
    state = pipeline.make_pipeline_state(_PRODUCER, STAGES)
    for k in cutlass.range(blocks, unroll=1):
        ring.producer_acquire(state)  # wait until the stage is empty
        full = ring.producer_get_barrier(state)
        for descriptor, source, stages in (a_copy, b_copy):
            cute.copy(descriptor, source[None, k], stages[None, state.index], tma_bar_ptr=full)
        state.advance()
    ring.producer_tail(state)


@cute.jit
def multiply(ring: pipeline.PipelineAsync, mma: cute.TiledMma, sums: cute.Tensor, a: tuple, b: tuple, blocks: Int32):
    """Two warp groups: multiply each block when it has arrived, and add to `sums`, in registers."""
    state = pipeline.make_pipeline_state(_CONSUMER, STAGES)
    sums.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, True)
    for _ in cutlass.range(blocks, unroll=1):
        ring.consumer_wait(state)  # wait until the stage is full
        warpgroup.fence()
        for k in cutlass.range_constexpr(TILE_K // 16):  # a wgmma is 16 deep
            cute.gemm(mma, sums, a[None, None, k, state.index], b[None, None, k, state.index], sums)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        ring.consumer_release(state)  # the stage is empty again
        state.advance()


@cute.jit
def round_sums(sums: cute.Tensor, rounded: cute.Tensor):
    """The arithmetic of the epilogue: from float32 to C's dtype."""
    rounded.store(sums.load().to(rounded.element_type))


@cute.jit
def store(descriptor: cute.CopyAtom, c: cute.Tensor, c_tile: cute.Tensor):
    """Both warp groups: wait until all have written to `c_tile`; then one warp copies it to C."""
    cute.arch.fence_proxy("async.shared", space="cta")  # TMA has to see what the threads wrote
    pipeline.NamedBarrier(barrier_id=1, num_threads=2 * WARP_GROUP).arrive_and_wait()
    if cute.arch.thread_idx()[0] < WARP_GROUP + 32:
        _, target, source = copy_of(descriptor, c, c_tile)
        cute.copy(descriptor, source, target)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.kernel
def kernel(mma: cute.TiledMma, a: tuple, b: tuple, c: tuple, layouts: tuple, epilogue: cutlass.Constexpr):
    """One CTA, one tile of C. `a`, `b` and `c` are pairs: a TMA descriptor, and the matrix."""
    a_stages, b_stages, c_tile, ring = share_memory(layouts)
    (tile_m, tile_n), (row, col, _), thread = c_tile.shape, cute.arch.block_idx(), cute.arch.thread_idx()[0]
    a_blocks = cute.local_tile(a[1], (tile_m, TILE_K), (row, None))
    b_blocks = cute.local_tile(b[1], (tile_n, TILE_K), (col, None))
    blocks = cute.size(a_blocks, mode=[2])
    if thread < WARP_GROUP:
        cute.arch.setmaxregister_decrease(40)
        if thread < 32:
            load(ring, copy_of(a[0], a_blocks, a_stages), copy_of(b[0], b_blocks, b_stages), blocks)
    else:
        cute.arch.setmaxregister_increase(232)
        mine = mma.get_slice(thread - WARP_GROUP)
        sums = cute.make_rmem_tensor(mma.partition_shape_C((tile_m, tile_n)), Float32)
        a_parts = mma.make_fragment_A(mine.partition_A(a_stages))
        b_parts = mma.make_fragment_B(mine.partition_B(b_stages))
        multiply(ring, mma, sums, a_parts, b_parts, blocks)
        rounded = cute.make_rmem_tensor(sums.shape, BFloat16)
        epilogue(sums, rounded)
        cute.autovec_copy(rounded, mine.partition_C(c_tile))
        store(c[0], cute.local_tile(c[1], (tile_m, tile_n), (row, col)), c_tile)


def share_memory(layouts: tuple):
    """Shared memory: the stages, the tile of C, and two barriers for each stage."""
    memory = cutlass.memory.SmemAllocator()
    a_stages, b_stages = (memory.allocate_tensor(BFloat16, each.outer, 1024, each.inner) for each in layouts[:2])
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.allocate_array(Int64, 2 * STAGES),
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),  # one thread of each of 8 warps
        tx_count=(cute.size(a_stages) + cute.size(b_stages)) * 2 // STAGES,  # bytes that make a stage full
    )
    return a_stages, b_stages, memory.allocate_tensor(BFloat16, layouts[2], 1024), ring


def copy_of(descriptor, memory, shared):
    """A TMA copy: the descriptor, the blocks in global memory, their places in shared memory."""
    both = cute.group_modes(shared, 0, 2), cute.group_modes(memory, 0, 2)
    return descriptor, *cpasync.tma_partition(descriptor, 0, cute.make_layout(1), *both)[::-1]


def stages_layout(lines: int):
    """`STAGES` blocks of (lines, TILE_K), swizzled so that reads have no bank conflicts."""
    kind = hopper_helpers.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, BFloat16, TILE_K)
    atom = warpgroup.make_smem_layout_atom(kind, BFloat16)
    return cute.tile_to_shape(atom, (lines, TILE_K, STAGES), order=(0, 1, 2))


@cute.jit
def product(
    a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, tile_n: cutlass.Constexpr, epilogue: cutlass.Constexpr, stream
):
    """On the host: make the descriptors, and launch a CTA for each tile of C."""
    k_major, tile = OperandMajorMode.K, (TILE_M, tile_n)
    mma = hopper_helpers.make_trivial_tiled_mma(BFloat16, BFloat16, k_major, k_major, Float32, (2, 1, 1), (64, tile_n))
    layouts = stages_layout(TILE_M), stages_layout(tile_n), cute.make_layout(tile, stride=(tile_n, 1))
    load_op, store_op = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    a_block, b_block = (cute.slice_(each, (None, None, 0)) for each in layouts[:2])
    copies = (
        tuple(cpasync.make_tiled_tma_atom(load_op, a, a_block, (TILE_M, TILE_K))),
        tuple(cpasync.make_tiled_tma_atom(load_op, b, b_block, (tile_n, TILE_K))),
        tuple(cpasync.make_tiled_tma_atom(store_op, c, layouts[2], tile)),
    )
    grid = cute.ceil_div(c.shape[0], TILE_M), cute.ceil_div(c.shape[1], tile_n), 1
    kernel(mma, *copies, layouts, epilogue).launch(grid=grid, block=(3 * WARP_GROUP, 1, 1), stream=stream)


def compile_product(epilogue: Callable = round_sums, tile_n: int = 128) -> tuple[Callable, str]:
    """Compile for a Hopper GPU, which need not be there.

    Args:
        epilogue: of (sums, rounded), a thread's float32 sums and 16-bit registers of the same shape, which it fills.
        tile_n: columns of a CTA's tile, a multiple of 16 up to `MAX_TILE_N`.

    Returns:
        A callable of CUDA tensors ``(a, b, c)``, bfloat16, (M, K), (N, K) and (M, N), extents that are multiples of 8,
        rows contiguous; and the PTX.

    Raises:
        ValueError: ``tile_n`` is another number.
    """
    if tile_n % 16 or not 16 <= tile_n <= MAX_TILE_N:
        raise ValueError(f"tile_n must be a multiple of 16 from 16 to {MAX_TILE_N}, got {tile_n}")
    M, N, K = (cute.sym_int(divisibility=8) for _ in range(3))
    fake = functools.partial(cute.runtime.make_fake_tensor, BFloat16, assumed_align=16)
    tensors = (fake(shape, stride=(cute.sym_int64(divisibility=8), 1)) for shape in ((M, K), (N, K), (M, N)))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    with tempfile.TemporaryDirectory() as folder:  # CuTe DSL keeps PTX in a file
        options = cute.GPUArch("sm_90a"), cute.EnableTVMFFI(True), cute.KeepPTX(True), DumpDir(folder)
        compiled = cute.compile[options](product, *tensors, tile_n, epilogue, stream)
        return compiled, compiled.__ptx__
