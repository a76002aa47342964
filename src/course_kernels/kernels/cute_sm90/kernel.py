"""Grouped GEMM for Hopper: the kernel's roles put together.

A block has three warp groups. The first one's first warp loads, its second one, too, where each column has factors of
blocks; its others write zeros, to the tail or to the results of groups without depth. The other two groups multiply and
store. All walk the same tiles (``scheduler``), a cluster of CTAs together. Cooperative warp groups share a tile.
Ping-pong ones take every other tile, and a pair of barriers lets one at a time multiply: so one's stores hide behind
the other's products, and the order in which stages are used is that in which they were filled.
"""

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync

from course_kernels.kernels.cute_sm90 import tickets
from course_kernels.kernels.cute_sm90.blockwise import multiply_blocks, multiply_lines
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, WARP_GROUP, CuteConfig, check_layout
from course_kernels.kernels.cute_sm90.epilogue import Scales, make_store, scale_tile, store_tile, write_zeros
from course_kernels.kernels.cute_sm90.factors import BlockScales, StageFactors, factors_of, load_all_factors
from course_kernels.kernels.cute_sm90.mainloop import (
    Shape,
    finish_tile,
    load_tile,
    make_ring,
    make_shape,
    multiply_apart,
    multiply_tile,
    skip_stages,
    stages_of,
)
from course_kernels.kernels.cute_sm90.scheduler import LANES, Problem, Tile, Window, blocks_at, find_tile, first_window
from course_kernels.kernels.cute_sm90.tickets import SLOTS, Place, Tickets
from course_kernels.kernels.cute_sm90.window import make_window

# A thread's registers: 40 and twice 232, times 128 threads, are no more than an SM's 65,536.
LOADING_REGISTERS = 40
MULTIPLYING_REGISTERS = 232
# Named barriers from here on give ping-pong's warp groups their turns; those below belong to the epilogue.
TURN = 3


class HopperGroupedGemm:
    """Groups along "m": C[start:end] = A[start:end] @ B[g] for every group g, and zeros after the last group.
    Groups along "k": C[g] = A[:, start:end] @ B[start:end], which is zeros where the group is empty. Groups of 8-bit
    operands are whole blocks of 128 there: each begins and ends at a multiple of that.
    Masked groups lie along "m" at equal distances; of each so many rows count, and nothing is written to the others.

    Args:
        config: tiles, cluster, stages, schedule.
        offsets_along: "m" or "k".
        b_major: the contiguous dimension of B, "k" or "n"; along "k" it is "n", but "k" for 8-bit operands.
        operand_bytes: of an element of the operands: 2, or 1 where B's K is contiguous.
        accumulate: along "k", add to C, which is float32, and leave it as it is where a group is empty. Each element is
            in one tile, so the sums are the same in every run.
        masked: whether groups are masked; along "m".
        block_scaled: scales are those of blocks, of operands of one byte.
        whole_rounds: the blocks along K are a multiple of the stages; where ``config.in_rounds``.

    Raises:
        ValueError: if no kernel can be built from ``config``, or for such operands.
    """

    def __init__(
        self,
        config: CuteConfig,
        *,
        offsets_along: str = "m",
        b_major: str = "k",
        operand_bytes: int = 2,
        accumulate: bool = False,
        masked: bool = False,
        block_scaled: bool = False,
        whole_rounds: bool = False,
    ):
        check_layout(offsets_along, b_major, operand_bytes)
        if block_scaled and operand_bytes != 1:
            raise ValueError(f"operand_bytes must be 1 where block_scaled, got {operand_bytes}")
        reason = config.why_not(operand_bytes, block_scaled, offsets_along)
        if reason is not None:
            raise ValueError(f"config: {reason}")
        if accumulate and offsets_along != "k":
            raise ValueError(f"offsets_along must be 'k' where accumulate is set, got {offsets_along!r}")
        if masked and offsets_along != "m":
            raise ValueError(f"offsets_along must be 'm' where masked, got {offsets_along!r}")
        in_rounds = config.in_rounds(block_scaled, offsets_along)
        if whole_rounds and not in_rounds:
            raise ValueError("whole_rounds must be False where a loop over K has no rounds of stages, got True")
        self.config, self.along, self.operand_bytes = config, offsets_along, operand_bytes
        self.accumulate, self.block_scaled, self.masked = accumulate, block_scaled, masked
        self.whole_rounds, self.skips_stages = whole_rounds, in_rounds and not whole_rounds
        self.stages_factors = block_scaled and offsets_along == "k"
        # Which operands have their lines contiguous, not their depth.
        self.a_across, self.b_across = offsets_along == "k" and b_major == "n", b_major == "n"

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        offs: cute.Tensor,
        max_active_clusters: cutlass.Constexpr[int],
        stream,
        scale_a: cute.Tensor | None = None,
        scale_b: cute.Tensor | None = None,
        counter: cute.Tensor | None = None,
    ):
        """Make the descriptors and launch. No extent may be 0: an empty result needs no launch, and the caller writes
        the zeros of a result without depth or groups. Offsets may have any values.

        Args:
            a: (total_m, K), K contiguous; along "k" (M, total_k), M contiguous, total_k where operands have 8 bits;
                float16, bfloat16 or float8_e4m3fn.
            b: (G, K, N), along "k" (total_k, N), ``b_major`` contiguous; of a's dtype.
            c: (total_m, N); along "k" (G, M, N); N contiguous; float16, bfloat16 or float32.
            offs: (G,) int32, rows, or lines along K, at which the groups end; where masked, rows of each group that
                count, of the total_m / G that it has.
            max_active_clusters: clusters that the GPU holds at one time.
            stream: where to launch.
            scale_a, scale_b: both or neither: (total_m,), along "k" (G, M), and (G, N) float32 factors of the product's
                rows and columns, before it is rounded; scale_b (G,) for one factor of all of a group's columns. Where
                ``block_scaled`` (total_m, ceil(K / 128)) and (G, ceil(K / 128), ceil(N / 128)) of blocks, along "k"
                (M, ceil(total_k / 128)) and (N, ceil(total_k / 128)), with any strides.
            counter: (1,) float64, 0, used by no other launch meanwhile, where the order is dynamic; 0 again afterwards.
        """
        config = self.config
        kind = BlockScales if cutlass.const_expr(self.block_scaled) else Scales
        scales = None if cutlass.const_expr(scale_a is None) else kind(scale_a, scale_b)
        total, M, K = cute.size(c, mode=[0]), cute.size(c, mode=[0]), cute.size(a, mode=[1])
        if cutlass.const_expr(self.along == "k"):
            total, M, a_lines = K, cute.size(c, mode=[1]), a
            b_lines = cute.make_tensor(b.iterator, cute.select(b.layout, [1, 0]))
            if cutlass.const_expr(self.a_across):
                a_lines, b_lines = make_window(a_lines, 1), make_window(b_lines, 1)
        else:
            a_lines = make_window(a, 0) if config.window else a
            b_lines = cute.make_tensor(b.iterator, cute.select(b.layout, [2, 1, 0]))
        pitch = config.stage_lines * config.tile_k
        operands = a_lines, b_lines, self.a_across, self.b_across
        shapes = tuple(
            make_shape(each, pitch, *operands, each.product_cols(self.operand_bytes)) for each in config.shapes
        )
        store_blocks = config.store_blocks(self.operand_bytes, self.block_scaled, self.along)
        c_layout, c_atom, c_coords = make_store(c, self.along, store_blocks, config.store_row_bytes, self.accumulate)
        numbers = config.stages * config.stage_factors(self.along) * self.stages_factors
        group_pitch = total // cute.size(offs) if cutlass.const_expr(self.masked) else None
        problem = Problem(offs, total, M, cute.size(c, mode=[cute.rank(c) - 1]), K, group_pitch)

        @cute.struct
        class Shared:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * config.stages]
            slots: cute.struct.MemRange[cutlass.Int64, 2 * SLOTS * config.dynamic]
            sent: cute.struct.MemRange[Int32, SLOTS * config.dynamic]
            loaded: cute.struct.MemRange[Int32, 1]
            factors: cute.struct.Align[cute.struct.MemRange[Float32, numbers], 16]
            stages: cute.struct.Align[cute.struct.MemRange[a.element_type, config.stages * pitch], 1024]
            c_blocks: cute.struct.Align[cute.struct.MemRange[c.element_type, cute.cosize(c_layout)], 1024]

        self.shared = Shared
        self.kernel(shapes, c_atom, c_coords, c, problem, scales, counter, c_layout).launch(
            grid=(config.cluster, 1, max_active_clusters),
            block=(3 * WARP_GROUP, 1, 1),
            cluster=(config.cluster, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        shapes: tuple[Shape, ...],
        c_atom: cute.CopyAtom,
        c_coords: cute.Tensor,
        c: cute.Tensor,
        problem: Problem,
        scales: Scales | BlockScales | None,
        counter: cute.Tensor | None,
        c_layout: cute.ComposedLayout,
    ):
        """What every block does."""
        config, along, thread = self.config, self.along, cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            # Those of most tiles; others fetch theirs with their first loads.
            a, b = shapes[0].a, shapes[0].b
            for atom in (a.atom, b.atom, a.half_atom, b.half_atom)[: 2 * config.cluster]:
                cpasync.prefetch_descriptor(atom)
            cpasync.prefetch_descriptor(c_atom)

        storage = cutlass.memory.SmemAllocator().allocate(self.shared)
        shared = tuple(stages_of(shape, storage.stages.data_ptr()) for shape in shapes)
        c_shared = storage.c_blocks.get_tensor(c_layout.outer, swizzle=c_layout.inner)
        ring = make_ring(config, storage.barriers.data_ptr(), LANES * self.stages_factors)
        factors = factors_of(config, storage.factors.data_ptr()) if self.stages_factors else None
        order = tickets.make_tickets(config, counter, storage.sent.data_ptr(), storage.slots.data_ptr())
        # Tiles whose loads have begun. Before this zero other warps may read an old value, and write zeros too early.
        loaded = storage.loaded.data_ptr()
        if cutlass.const_expr(along == "k" and not self.accumulate) and thread == 0:
            cute.arch.store(loaded, Int32(0), sem="relaxed", scope="cta", ss="cta")
        # No CTA may write to the other's stages, or count on its barriers, before they are set up.
        cluster = (config.cluster, 1)
        pipeline.pipeline_init_arrive(cluster_shape_mn=cluster, is_relaxed=True)
        window = first_window(config, along, problem)  # reads the first groups' ends meanwhile
        pipeline.pipeline_init_wait(cluster_shape_mn=cluster)

        place = Place(cute.arch.block_idx()[2], Int32(0))
        if group == 0:
            cute.arch.setmaxregister_decrease(LOADING_REGISTERS)
            if warp == 0:
                state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
                window, tile = find_tile(config, along, problem, window, place.number)
                while tile.found:
                    if cutlass.const_expr(along == "k" and not self.accumulate) and thread == 0:
                        cute.arch.atomic_add(loaded, Int32(1), sem="relaxed", scope="cta")
                    for i in cutlass.range_constexpr(len(shapes)):
                        if cutlass.const_expr(len(shapes) == 1) or tile.shape == i:
                            state, window, place = load_tile(
                                config, i, along, tile, ring, state, shapes[i], shared[i], problem, order, window, place
                            )
                    if cutlass.const_expr(self.skips_stages):
                        state = skip_stages(ring, state)
                    window, tile, place = tickets.next_to_load(config, along, problem, order, window, place)
                if cutlass.const_expr(config.dynamic and along == "k" and not self.accumulate) and thread == 0:
                    cute.arch.atomic_add(loaded, Int32(2**30), sem="relaxed", scope="cta")
                # A CTA that ends while the other still reports to its barriers would be written to after its end.
                ring.producer_tail(state)
                tickets.leave_loading(config, order, place)
            else:
                if cutlass.const_expr(self.stages_factors):
                    load_all_factors(config, problem, window, place.number, ring, scales, factors)
                if cutlass.const_expr(not (self.masked or self.accumulate)):
                    write_zeros(config, along, 3 - self.stages_factors, c, problem, loaded)
        else:
            cute.arch.setmaxregister_increase(MULTIPLYING_REGISTERS)
            consumer = group - 1
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
            turns = tuple(
                pipeline.NamedBarrier(barrier_id=TURN + each, num_threads=2 * WARP_GROUP)
                for each in (consumer, 1 - consumer)
            )
            if cutlass.const_expr(config.schedule == PINGPONG) and consumer == 1:
                # First: the next number comes when the first tile is loaded, and that may take its products.
                turns[1].arrive()
                window, blocks = blocks_at(config, along, problem, window, place.number)
                state.advance(blocks)
                place = tickets.following(config, order, place)

            window, tile = find_tile(config, along, problem, window, place.number)
            while tile.found:
                for i in cutlass.range_constexpr(len(shapes)):
                    if cutlass.const_expr(len(shapes) == 1) or tile.shape == i:
                        state, window, place = self.compute_tile(
                            config.shapes[i], shapes[i], shared[i], tile, ring, state, turns, problem, window,
                            order, place, scales, factors, c_atom, c_coords, c_shared,
                        )  # fmt: skip
                place = tickets.following(config, order, place)
                window, tile = find_tile(config, along, problem, window, place.number)
            tickets.leave(config, order, place)
            # Shared memory must outlive the stores that read it.
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def compute_tile(
        self,
        cut: cutlass.Constexpr,
        shape: Shape,
        shared: tuple[cute.Tensor, cute.Tensor],
        tile: Tile,
        ring: pipeline.PipelineAsync,
        state: pipeline.PipelineState,
        turns: tuple[pipeline.NamedBarrier, pipeline.NamedBarrier],
        problem: Problem,
        window: Window,
        order: Tickets,
        place: Place,
        scales: Scales | BlockScales | None,
        factors: StageFactors | None,
        c_atom: cute.CopyAtom,
        c_coords: cute.Tensor,
        c_shared: cute.Tensor,
    ) -> tuple[pipeline.PipelineState, Window, Place]:
        """Multiply and store a tile of one shape, ``cut`` of ``CuteConfig.shapes``. Returns the state, the window of
        groups and the place after the tile; in ping-pong after the one that follows, the other warp group's."""
        config = self.config
        mma, (a_shared, b_shared), (my_turn, other_turn) = shape.mma, shared, turns
        consumer = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1
        thread_mma = mma.get_slice(consumer * WARP_GROUP if config.schedule == COOPERATIVE else 0)
        a_fragments = mma.make_fragment_A(thread_mma.partition_A(a_shared))
        b_parts = b_shared
        if cutlass.const_expr(self.operand_bytes == 1):
            # A part is what one product covers: (columns, depth, part, stage).
            cols = cut.product_cols(1)
            b_parts = cute.flat_divide(b_shared, (cols, config.tile_k))[None, None, None, 0, None]
        b_fragments = mma.make_fragment_B(thread_mma.partition_B(b_parts))
        acc = cute.make_rmem_tensor(mma.partition_shape_C((cut.tile_m, cut.tile_n)), Float32)
        if cutlass.const_expr(config.schedule == PINGPONG):
            my_turn.arrive_and_wait()
        if cutlass.const_expr(self.stages_factors):
            state = multiply_lines(cut, tile, ring, state, mma, acc, a_fragments, b_fragments, factors)
        elif cutlass.const_expr(self.block_scaled):
            state = multiply_blocks(
                config, cut, self.whole_rounds, tile, ring, state, mma, acc, a_fragments, b_fragments, scales
            )
        elif cutlass.const_expr(self.operand_bytes == 1):
            state = multiply_apart(ring, state, mma, acc, a_fragments, b_fragments, tile.blocks)
        else:
            state, done = multiply_tile(ring, state, mma, acc, a_fragments, b_fragments, tile.blocks)
        if cutlass.const_expr(config.schedule == PINGPONG):
            other_turn.arrive()
            place = tickets.following(config, order, place)
            window, blocks = blocks_at(config, self.along, problem, window, place.number)
            state.advance(blocks)
        if cutlass.const_expr(self.operand_bytes > 1):
            finish_tile(ring, done)
        if cutlass.const_expr(scales is not None and not self.block_scaled):
            scale_tile(cut, self.along, tile, acc, scales)
        store_tile(config, cut, self.along, tile, acc, c_atom, c_coords, c_shared)
        return state, window, place
